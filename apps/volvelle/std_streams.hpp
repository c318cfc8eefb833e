// The three standard streams below stdio: whole writes, no exceptions, no buffers.
//
// stdout carries the result, so a failed write is reported; stderr carries notes, so what can not
// be written there is dropped and never stops or fails the work. SIGPIPE must be ignored
// (signals.hpp).
#pragma once

#include <string>
#include <string_view>

namespace volvelle::cli {

/// Opens /dev/null in the place of standard streams that are closed, or the next file that is
/// opened would get their number and receive progress lines. A closed stdout stays unwritable.
void open_missing_streams() noexcept;

/// 0, or the errno of the write that failed (EINTR: a signal arrived while the reader was slow).
[[nodiscard]] int write_stdout(std::string_view text) noexcept;

void write_stderr(std::string_view text) noexcept;

/// While it lives, what anybody writes to stderr is kept instead: for engine code that prints what
/// it has to say. One at a time, and no other thread may use stderr meanwhile. If the system gives
/// no file for it, nothing is captured.
class CapturedStderr {
 public:
  CapturedStderr() noexcept;
  ~CapturedStderr();
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;
  /// Ends the capture; what was written.
  std::string take();

 private:
  void restore() noexcept;
  int file_ = -1;
  int kept_ = -1;  // the real stderr
};

}  // namespace volvelle::cli
