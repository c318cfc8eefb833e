// Writing to stdout and stderr; see console.hpp for which goes where.
#include "console.hpp"

#include <fmt/format.h>

#include <utility>

#include "output.hpp"
#include "std_streams.hpp"

namespace volvelle::cli {

namespace {

void write_line(std::string_view text) {
  // One call per line, so that lines of several threads do not mix. Messages are one line by
  // contract; a file name with a newline in it must not break that.
  write_stderr(escape_controls(text) + "\n");
}

}  // namespace

Console::Console(std::string command, CommonFlags flags, CancelToken cancel)
    : command_(std::move(command)), flags_(flags), cancel_(std::move(cancel)) {}

void Console::note(std::string_view message) {
  bar_.finish();
  write_line(message);
}

void Console::warn(std::string_view message) {
  note(fmt::format("{}: warning: {}", command_, message));
}

void Console::error(const Error& error) { note(fmt::format("{}: {}", command_, error.message)); }

void Console::stream(std::string_view text) {
  if (flags_.json || text.empty()) return;
  bar_.finish();
  print(text);
}

int Console::print(std::string_view text) {
  if (stdout_error_ == 0) stdout_error_ = write_stdout(text);
  if (stdout_error_ != 0) cancel_.cancel();  // nobody gets what would still be computed
  return stdout_error_;
}

LogSink Console::log_sink() {
  if (!flags_.verbose) return {};
  return [](LogLevel, std::string_view message) {
    while (!message.empty() && message.back() == '\n') message.remove_suffix(1);
    // llama.cpp continues lines with single dots while it loads; they are no messages.
    if (message.find_first_not_of(". ") != std::string_view::npos) write_line(message);
  };
}

ProgressSink Console::progress_sink() {
  return [this](const Progress& progress) { bar_.update(progress); };
}

void Console::end_progress() { bar_.finish(); }

}  // namespace volvelle::cli
