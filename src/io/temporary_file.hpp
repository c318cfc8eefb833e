// The file that AtomicFile works in until it gets its name. Where the system can, it has no name at
// all (O_TMPFILE), so that it vanishes with the process, whatever ends that; elsewhere it lies
// beside the target as ".NAME.PID.RANDOM.tmp" and the destructor removes it. Both have mode 0600.
// The folder is held open: a changed working directory or a renamed folder changes nothing.
#pragma once

#include <filesystem>
#include <string>

#include "io/file_descriptor.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle::io {

/// Not movable; at most one publish(). Not thread-safe.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path target) : target_(std::move(target)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { remove_name(); }

  /// Creates the file. The target's folder must exist.
  Status open();
  int fd() const noexcept { return fd_.get(); }
  /// Gives it the target's name, replacing what has that name, and syncs the folder. Fails without
  /// leaving a name behind.
  Status publish();

 private:
  bool open_unnamed();
  Status open_named();
  Status link_unnamed();
  Status sync_folder() const;
  std::string new_name() const;
  void remove_name() noexcept;
  Error failure(const std::string& what, int error) const;

  std::filesystem::path target_;
  FileDescriptor folder_;
  FileDescriptor fd_;
  std::size_t max_name_ = 0;
  std::string name_;  // in the folder; empty while there is none
};

/// The folder that holds `target`.
std::filesystem::path folder_of(const std::filesystem::path& target);

/// For tests: whether files without a name are used where the system has them. Default: yes.
void set_unnamed_files_allowed(bool allowed) noexcept;

}  // namespace volvelle::io
