// Atomic writes: work in a temporary file in the target's folder, then msync, fsync, and give it
// the target's name (temporary_file.hpp). At every moment the target is either the old file or the
// complete new one. A file that was not committed goes with its AtomicFile, and where the system
// has files without names also with a process that is killed. A target that is a symbolic link is
// replaced as such; the file it pointed to stays. Cost: the reservation is O(extents); commit
// writes every dirty page once.
#include "volvelle/io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/result_macros.hpp"
#include "io/mapping.hpp"
#include "io/message.hpp"
#include "io/temporary_file.hpp"

namespace volvelle {
namespace {

using std::filesystem::path;

std::string operation_on(const path& target) { return "writing " + io::quoted_path(target) + ": "; }

/// Refuses names that the rename at the end would refuse, after all the work.
Status check_name(const path& target) {
  const path name = target.filename();
  if (name.empty() || name == "." || name == "..") {
    return Error{ErrorCode::kInvalidArgument,
                 operation_on(target) + "the path has no file name; name a file"};
  }
  constexpr long kUsual = 255;  // where the folder does not tell (it may not exist)
  const long announced = ::pathconf(io::folder_of(target).c_str(), _PC_NAME_MAX);
  const auto limit = static_cast<std::size_t>(announced > 0 ? announced : kUsual);
  const std::size_t length = name.native().size();
  if (length <= limit) return {};
  return Error{ErrorCode::kInvalidArgument,
               operation_on(target) + "expected a file name of at most " + std::to_string(limit) +
                   " bytes, found " + std::to_string(length) + "; choose a shorter name"};
}

/// Refuses targets that a rename would destroy (folders, devices) and folders that can not take a
/// new file.
Status check_target(const path& target) {
  const std::string operation = operation_on(target);
  struct stat info {};
  const int errno_of_target = ::stat(target.c_str(), &info) == 0 ? 0 : errno;
  if (errno_of_target == 0) {
    if (S_ISDIR(info.st_mode)) {
      return Error{ErrorCode::kInvalidArgument,
                   operation + "the target is a folder; name a file inside it"};
    }
    if (!S_ISREG(info.st_mode)) {
      return Error{ErrorCode::kInvalidArgument,
                   operation + "the target is a pipe, socket or device; name a regular file"};
    }
  }
  VOLVELLE_RETURN_IF_ERROR(check_name(target));
  if (errno_of_target == ENAMETOOLONG) {
    return Error{ErrorCode::kInvalidArgument,
                 operation + "the path or the file name is too long; choose a shorter one"};
  }
  const path folder = io::folder_of(target);
  if (::stat(folder.c_str(), &info) != 0) {
    const int error = errno;
    return Error{error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 operation + "folder " + io::quoted_path(folder) + ": " +
                     io::system_message(error) + "; create it first"};
  }
  if (!S_ISDIR(info.st_mode)) {
    return Error{ErrorCode::kInvalidArgument,
                 operation + io::quoted_path(folder) + " is not a folder"};
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return Error{ErrorCode::kIo, operation + "folder " + io::quoted_path(folder) +
                                     " is not writable: " + io::system_message(errno) +
                                     "; choose another one or change its permissions"};
  }
  return {};
}

std::optional<std::uint64_t> available_bytes(int fd) {
  struct statvfs info {};
  if (::fstatvfs(fd, &info) != 0) return std::nullopt;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(std::uint64_t{info.f_bavail}, std::uint64_t{info.f_frsize}, &bytes))
    return std::nullopt;
  return bytes;
}

Error no_space(const path& target, std::uint64_t size, std::optional<std::uint64_t> available) {
  return {ErrorCode::kIo, operation_on(target) + "needed " + std::to_string(size) +
                              " bytes, available " +
                              (available ? std::to_string(*available) : "fewer") +
                              "; free disk space or choose another disk"};
}

Status reserve(int fd, const path& target, std::uint64_t size) {
  if (size == 0) return {};
  const std::optional<std::uint64_t> available = available_bytes(fd);
  if (size > std::uint64_t{std::numeric_limits<off_t>::max()} || (available && size > *available)) {
    return no_space(target, size, available);
  }
  int error = 0;
  do {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(size));
  } while (error == EINTR);
  if (error == 0) return {};
  if (error == ENOSPC || error == EFBIG || error == EDQUOT)
    return no_space(target, size, available_bytes(fd));
  return Error{ErrorCode::kIo, operation_on(target) + "reserving " + std::to_string(size) +
                                   " bytes failed: " + io::system_message(error)};
}

/// Repeats a call that a signal interrupted: half a flush is of no use to anyone.
template <class Call>
bool succeeds(const Call& call) {
  int result = 0;
  do {
    result = call();
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

struct AtomicFile::Impl {
  path target;
  io::TemporaryFile file;
  std::shared_ptr<void> mapping;
  std::size_t size = 0;
  bool committed = false;  // or tried to

  explicit Impl(const path& name) : target(name), file(name) {}
};

AtomicFile::AtomicFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<AtomicFile> AtomicFile::create(const path& target, std::uint64_t size) {
  VOLVELLE_RETURN_IF_ERROR(check_target(target));
  auto impl = std::make_unique<Impl>(target);
  VOLVELLE_RETURN_IF_ERROR(impl->file.open());
  VOLVELLE_RETURN_IF_ERROR(reserve(impl->file.fd(), target, size));
  impl->size = static_cast<std::size_t>(size);
  if (size > 0) {
    impl->mapping = io::map_file(impl->file.fd(), impl->size, true);
    if (!impl->mapping) {
      return Error{ErrorCode::kResourceExhausted,
                   operation_on(target) + "mapping " + std::to_string(size) +
                       " bytes failed: " + io::system_message(errno)};
    }
  }
  return AtomicFile(std::move(impl));
}

std::span<std::byte> AtomicFile::bytes() noexcept {
  return {static_cast<std::byte*>(impl_->mapping.get()), impl_->size};
}

std::shared_ptr<void> AtomicFile::owner() const noexcept { return impl_->mapping; }

Status AtomicFile::commit() {
  const std::string operation = operation_on(impl_->target);
  if (impl_->committed) throw std::logic_error("AtomicFile::commit() called twice");
  impl_->committed = true;
  void* const start = impl_->mapping.get();
  if (start != nullptr && !succeeds([&] { return ::msync(start, impl_->size, MS_SYNC); })) {
    return Error{ErrorCode::kIo,
                 operation + "flushing to disk failed: " + io::system_message(errno)};
  }
  if (!succeeds([&] { return ::fsync(impl_->file.fd()); })) {
    return Error{ErrorCode::kIo,
                 operation + "syncing to disk failed: " + io::system_message(errno)};
  }
  return impl_->file.publish();
}

Status write_file_atomically(const path& target, std::span<const std::byte> contents) {
  VOLVELLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(target, contents.size()));
  if (!contents.empty()) std::memcpy(file.bytes().data(), contents.data(), contents.size());
  return file.commit();
}

}  // namespace volvelle
