// The token is looked at several times a second, because a signal may be delivered to another
// thread, or a moment before the waiting begins.
#include "line_reader.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace volvelle::cli {

namespace {

constexpr int kPollMilliseconds = 200;

}  // namespace

LineReader::Outcome LineReader::fill() {
  while (true) {
    if (cancel_.cancelled()) return Outcome::kCancelled;
    pollfd descriptor{STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&descriptor, 1, kPollMilliseconds);
    if (ready < 0 && errno != EINTR) return Outcome::kFailed;
    if (ready <= 0) continue;
    char bytes[4096];
    const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return Outcome::kFailed;
    ended_ = n == 0;
    buffer_.append(bytes, static_cast<std::size_t>(n));
    return Outcome::kLine;
  }
}

LineReader::Outcome LineReader::read_physical(std::string& line) {
  std::size_t searched = 0;
  while (true) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos || (ended_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return Outcome::kLine;
    }
    if (ended_) return cancel_.cancelled() ? Outcome::kCancelled : Outcome::kEnd;
    searched = buffer_.size();
    if (const Outcome outcome = fill(); outcome != Outcome::kLine) return outcome;
  }
}

LineReader::Outcome LineReader::read(std::string& line) {
  line.clear();
  std::string part;
  for (bool continued = false;; continued = true) {
    const Outcome outcome = read_physical(part);
    if (outcome == Outcome::kEnd && continued) return Outcome::kLine;
    if (outcome != Outcome::kLine) return outcome;
    line += part;
    if (line.empty() || line.back() != '\\') return Outcome::kLine;
    line.back() = '\n';
  }
}

}  // namespace volvelle::cli
