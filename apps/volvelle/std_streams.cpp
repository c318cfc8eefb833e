// Writing with write(2); see std_streams.hpp for what happens to failures.
#include "std_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace volvelle::cli
