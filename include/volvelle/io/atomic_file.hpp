// A file that appears under its name only when it is complete. Until then it lies in the target's
// folder (rename is atomic within a file system) with mode 0600, without a name where the system
// has such files, and its space is reserved, so a full disk is an error before the work and not a
// signal during it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "volvelle/base/result.hpp"

namespace volvelle {

/// A writable mapping of a temporary file in the target's folder, mode 0600, space reserved.
/// commit() makes it the target (fsync, rename, fsync of the folder); it may be called once.
/// Without a commit, the file is gone when the object is; if it has no name, also when the process
/// is. The mapping stays valid while owner() is held, and is read-only in spirit after commit().
/// Thread-compatible.
class AtomicFile {
 public:
  /// Reserves `size` bytes of disk space, so that a full disk is an error here and not a signal
  /// later.
  static Result<AtomicFile> create(const std::filesystem::path& target, std::uint64_t size);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();

  std::span<std::byte> bytes() noexcept;
  std::shared_ptr<void> owner() const noexcept;
  Status commit();

 private:
  struct Impl;
  explicit AtomicFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Replaces `target` by `contents` atomically.
Status write_file_atomically(const std::filesystem::path& target,
                             std::span<const std::byte> contents);

/// Reads a whole text file (documents, prompts). A signal whose handler was installed without
/// SA_RESTART ends the reading with kCancelled.
Result<std::string> read_text_file(const std::filesystem::path& path);

}  // namespace volvelle
