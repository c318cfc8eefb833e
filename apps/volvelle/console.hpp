// What the user sees while a command runs.
//
// stdout carries the answer and nothing else: streamed text, a table, or with --json exactly one
// object. Everything else (warnings, logs, progress) goes to stderr, so that output can be piped.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "progress_bar.hpp"
#include "volvelle/base/cancel.hpp"
#include "volvelle/base/log.hpp"
#include "volvelle/base/progress.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle::cli {

/// Flags that every subcommand has.
struct CommonFlags {
  bool json = false;
  bool verbose = false;
};

/// One per run of the program. Its sinks refer to it and must not outlive it.
class Console {
 public:
  Console(std::string command, CommonFlags flags, CancelToken cancel);

  bool json() const noexcept { return flags_.json; }
  /// The token that Ctrl-C sets.
  const CancelToken& cancel() const noexcept { return cancel_; }

  void note(std::string_view message);  // one line on stderr, always
  void warn(std::string_view message);  // "volvelle fold: warning: ..."
  void error(const Error& error);       // "volvelle fold: ..."
  /// Text of an answer as it comes; nothing with --json.
  void stream(std::string_view text);
  /// Writes to stdout; 0 or the errno of the first write that failed, now or earlier. After a
  /// failure the token is set, because the output can not become complete any more.
  int print(std::string_view text);
  int stdout_error() const noexcept { return stdout_error_; }

  LogSink log_sink();            // engine messages: shown with -v only
  ProgressSink progress_sink();  // draws on stderr
  void end_progress();           // before other output

 private:
  std::string command_;
  CommonFlags flags_;
  CancelToken cancel_;
  int stdout_error_ = 0;
  ProgressBar bar_;
};

}  // namespace volvelle::cli
