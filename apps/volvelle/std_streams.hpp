// The three standard streams below stdio: whole writes, no exceptions, no buffers.
//
// stdout carries the result, so a failed write is reported; stderr carries notes, so what can not
// be written there is dropped and never stops or fails the work. SIGPIPE must be ignored
// (signals.hpp).
#pragma once

#include <string_view>

namespace volvelle::cli {

/// Opens /dev/null in the place of standard streams that are closed, or the next file that is
/// opened would get their number and receive progress lines. A closed stdout stays unwritable.
void open_missing_streams() noexcept;

/// 0, or the errno of the write that failed (EINTR: a signal arrived while the reader was slow).
[[nodiscard]] int write_stdout(std::string_view text) noexcept;

void write_stderr(std::string_view text) noexcept;

}  // namespace volvelle::cli
