// Temporary files, see the header; open(2) describes O_TMPFILE and the way to name such a file:
// linkat() of its entry in /proc/self/fd. linkat() can not replace a file, so the name it makes is
// a temporary one, which is then renamed over the target; only a process killed between these two
// calls leaves a name behind. Cost: a few system calls.
#include "io/temporary_file.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "base/result_macros.hpp"
#include "io/message.hpp"

namespace volvelle::io {
namespace {

// A clash of 64 random bits and a process id means that something else is wrong.
constexpr int kAttempts = 16;

// Shorter than any limit in use: some file systems announce more than they take (FAT counts UTF-16
// units). Room for the tail, with a process id of 10 digits, is the least that is needed.
constexpr long kMaxName = 128;
constexpr long kMinName = 40;

std::atomic<bool> unnamed_files_allowed{true};

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

std::string proc_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

}  // namespace

std::filesystem::path folder_of(const std::filesystem::path& target) {
  return target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
}

void set_unnamed_files_allowed(bool allowed) noexcept { unnamed_files_allowed = allowed; }

Error TemporaryFile::failure(const std::string& what, int error) const {
  return {ErrorCode::kIo,
          "writing " + quoted_path(target_) + ": " + what + ": " + system_message(error)};
}

/// ".NAME.PID.RANDOM.tmp", NAME cut between characters so that the whole fits.
std::string TemporaryFile::new_name() const {
  const std::string tail = "." + std::to_string(::getpid()) + "." + random_hex() + ".tmp";
  const std::string name = target_.filename().native();
  std::size_t kept = std::min(name.size(), max_name_ - 1 - tail.size());
  while (kept > 0 && kept < name.size() && (name[kept] & 0xC0) == 0x80) --kept;  // inside UTF-8
  return "." + name.substr(0, kept) + tail;
}

Status TemporaryFile::open() {
  const std::filesystem::path folder = folder_of(target_);
  folder_ = FileDescriptor(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.valid()) return failure("opening folder " + quoted_path(folder) + " failed", errno);
  const long announced = ::fpathconf(folder_.get(), _PC_NAME_MAX);
  if (announced > 0 && announced < kMinName) {
    return Error{ErrorCode::kUnsupported,
                 "writing " + quoted_path(target_) + ": the folder takes file names of at most " +
                     std::to_string(announced) + " bytes, expected " + std::to_string(kMinName) +
                     " for the temporary file; choose another folder"};
  }
  max_name_ = static_cast<std::size_t>(announced > 0 ? std::min(announced, kMaxName) : kMaxName);
  if (unnamed_files_allowed && open_unnamed()) return {};
  return open_named();
}

/// False if this system or file system has no such files, or could not name them later. Other
/// failures (no space, no permission) show in open_named() just the same, which reports them.
bool TemporaryFile::open_unnamed() {
  FileDescriptor fd(::openat(folder_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid() || ::access(proc_path(fd.get()).c_str(), F_OK) != 0) return false;
  fd_ = std::move(fd);
  return true;
}

Status TemporaryFile::open_named() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string candidate = new_name();
    fd_ = FileDescriptor(::openat(folder_.get(), candidate.c_str(),
                                  O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd_.valid()) {
      name_ = candidate;
      return {};
    }
    if (errno != EEXIST) break;
  }
  return failure("creating a temporary file in its folder failed", errno);
}

Status TemporaryFile::link_unnamed() {
  const std::string source = proc_path(fd_.get());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string candidate = new_name();
    if (::linkat(AT_FDCWD, source.c_str(), folder_.get(), candidate.c_str(), AT_SYMLINK_FOLLOW) ==
        0) {
      name_ = candidate;
      return {};
    }
    if (errno != EEXIST) break;
  }
  return failure("giving the written file a name failed", errno);
}

Status TemporaryFile::publish() {
  if (name_.empty()) VOLVELLE_RETURN_IF_ERROR(link_unnamed());
  const std::string name = target_.filename().native();
  if (::renameat(folder_.get(), name_.c_str(), folder_.get(), name.c_str()) != 0) {
    const int error = errno;
    remove_name();
    return failure("renaming the temporary file failed", error);
  }
  name_.clear();
  return sync_folder();
}

Status TemporaryFile::sync_folder() const {
  // O_PATH descriptors can not be synced through.
  const FileDescriptor fd(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return {};  // writable but not readable folder: nothing to sync through
  int done = 0;
  do {
    done = ::fsync(fd.get());
  } while (done != 0 && errno == EINTR);
  if (done == 0 || errno == EINVAL || errno == EROFS) return {};  // not offered by this file system
  const int error = errno;
  return failure("written, but it may be lost in a power failure, syncing its folder failed",
                 error);
}

void TemporaryFile::remove_name() noexcept {
  if (!name_.empty()) ::unlinkat(folder_.get(), name_.c_str(), 0);
  name_.clear();
}

}  // namespace volvelle::io
