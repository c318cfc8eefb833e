// Atomic writes: work in a temporary file beside the target, then msync, fsync, rename, fsync of
// the folder. At every moment the target is either the old file or the complete new one; a
// temporary file that was not committed is removed by the destructor, so stopping early (also by
// Ctrl-C that unwinds the stack) leaves nothing behind. A target that is a symbolic link is
// replaced as such; the file it pointed to stays. Cost: the reservation is O(extents); commit
// writes every dirty page once.
#include "volvelle/io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/result_macros.hpp"
#include "io/file_descriptor.hpp"
#include "io/mapping.hpp"
#include "io/message.hpp"

namespace volvelle {
namespace {

using std::filesystem::path;

constexpr std::size_t kMaxNamePart =
    200;  // of the target's name: the temporary name must fit into NAME_MAX (255)

std::string operation_on(const path& target) { return "writing " + io::quoted_path(target) + ": "; }

path folder_of(const path& target) {
  return target.has_parent_path() ? target.parent_path() : path(".");
}

std::string random_hex() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number)) {
    // No entropy yet (early boot): O_EXCL keeps names apart, they only need to differ.
    static std::atomic<std::uint64_t> counter{0};
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    number = static_cast<std::uint64_t>(now) * 0x9E3779B97F4A7C15u + counter.fetch_add(1);
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (int shift = 60; shift >= 0; shift -= 4) hex += kHex[(number >> shift) & 15];
  return hex;
}

/// Refuses targets that a rename would destroy (folders, devices) and folders that can not take a
/// new file.
Status check_target(const path& target) {
  const std::string operation = operation_on(target);
  const path name = target.filename();
  struct stat info {};
  if (::stat(target.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      return Error{ErrorCode::kInvalidArgument,
                   operation + "the target is a folder; name a file inside it"};
    }
    if (!S_ISREG(info.st_mode)) {
      return Error{ErrorCode::kInvalidArgument,
                   operation + "the target is a pipe, socket or device; name a regular file"};
    }
  }
  if (name.empty() || name == "." || name == "..") {
    return Error{ErrorCode::kInvalidArgument, operation + "the path has no file name; name a file"};
  }
  const path folder = folder_of(target);
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

Status sync_folder(const path& target) {
  const io::FileDescriptor fd(
      ::open(folder_of(target).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return {};  // writable but not readable folder: nothing to sync through
  if (::fsync(fd.get()) == 0 || errno == EINVAL || errno == EROFS)
    return {};  // not offered by this file system
  return Error{ErrorCode::kIo, operation_on(target) + "written, but syncing its folder failed: " +
                                   io::system_message(errno) +
                                   "; it may be lost in a power failure"};
}

}  // namespace

struct AtomicFile::Impl {
  path target;
  path temporary;  // empty once committed
  io::FileDescriptor fd;
  std::shared_ptr<void> mapping;
  std::size_t size = 0;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }
  Status open_temporary();
};

Status AtomicFile::Impl::open_temporary() {
  const std::string name = target.filename().native().substr(0, kMaxNamePart);
  constexpr int kAttempts =
      16;  // a clash of 64 random bits and a process id means something else is wrong
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const path candidate = folder_of(target) / ("." + name + "." + std::to_string(::getpid()) +
                                                "." + random_hex() + ".tmp");
    fd = io::FileDescriptor(
        ::open(candidate.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd.valid()) {
      temporary = candidate;
      return {};
    }
    if (errno != EEXIST) break;
  }
  return Error{ErrorCode::kIo, operation_on(target) + "creating a temporary file in " +
                                   io::quoted_path(folder_of(target)) +
                                   " failed: " + io::system_message(errno)};
}

AtomicFile::AtomicFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<AtomicFile> AtomicFile::create(const path& target, std::uint64_t size) {
  VOLVELLE_RETURN_IF_ERROR(check_target(target));
  auto impl = std::make_unique<Impl>();
  impl->target = target;
  VOLVELLE_RETURN_IF_ERROR(impl->open_temporary());
  VOLVELLE_RETURN_IF_ERROR(reserve(impl->fd.get(), target, size));
  impl->size = static_cast<std::size_t>(size);
  if (size > 0) {
    impl->mapping = io::map_file(impl->fd.get(), impl->size, true);
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
  if (impl_->temporary.empty()) throw std::logic_error("AtomicFile::commit() called twice");
  if (impl_->mapping && ::msync(impl_->mapping.get(), impl_->size, MS_SYNC) != 0) {
    return Error{ErrorCode::kIo,
                 operation + "flushing to disk failed: " + io::system_message(errno)};
  }
  if (::fsync(impl_->fd.get()) != 0) {
    return Error{ErrorCode::kIo,
                 operation + "syncing to disk failed: " + io::system_message(errno)};
  }
  if (::rename(impl_->temporary.c_str(), impl_->target.c_str()) != 0) {
    return Error{ErrorCode::kIo,
                 operation + "renaming the temporary file failed: " + io::system_message(errno)};
  }
  impl_->temporary.clear();
  return sync_folder(impl_->target);
}

Status write_file_atomically(const path& target, std::span<const std::byte> contents) {
  VOLVELLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(target, contents.size()));
  if (!contents.empty()) std::memcpy(file.bytes().data(), contents.data(), contents.size());
  return file.commit();
}

}  // namespace volvelle
