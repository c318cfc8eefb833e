// Writing with write(2); see std_streams.hpp for what happens to failures.
#include "std_streams.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace volvelle::cli {

namespace {

int write_all(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

void open_missing_streams() noexcept {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // open() takes the lowest free number, which is `fd`. Read-only for stdout, so that a result
    // that nobody can get is a failed write and not a silent success.
    if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

int write_stdout(std::string_view text) noexcept { return write_all(STDOUT_FILENO, text); }

void write_stderr(std::string_view text) noexcept { write_all(STDERR_FILENO, text); }

CapturedStderr::CapturedStderr() noexcept {
  std::fflush(stderr);
  file_ = memfd_create("stderr", MFD_CLOEXEC);
  if (file_ < 0) return;
  kept_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (kept_ >= 0) dup2(file_, STDERR_FILENO);
}

CapturedStderr::~CapturedStderr() { restore(); }

std::string CapturedStderr::take() {
  std::fflush(stderr);
  std::string text(65536, '\0');
  const ssize_t n = pread(file_, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  restore();
  return text;
}

void CapturedStderr::restore() noexcept {
  if (const int kept = std::exchange(kept_, -1); kept >= 0) {
    dup2(kept, STDERR_FILENO);
    close(kept);
  }
  if (const int file = std::exchange(file_, -1); file >= 0) close(file);
}

}  // namespace volvelle::cli
