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
  Console(std::string command, CommonFlags flags);

  bool json() const noexcept { return flags_.json; }
  /// The token that Ctrl-C sets.
  const CancelToken& cancel() const noexcept { return cancel_; }

  void note(std::string_view message);  // one line on stderr, always
  void warn(std::string_view message);  // "volvelle fold: warning: ..."
  void error(const Error& error);       // "volvelle fold: ..."
  /// Text of an answer as it comes; nothing with --json.
  void stream(std::string_view text);

  LogSink log_sink();            // engine messages: shown with -v only
  ProgressSink progress_sink();  // draws on stderr
  void end_progress();           // before other output

 private:
  std::string command_;
  CommonFlags flags_;
  CancelToken cancel_;
  ProgressBar bar_;
};

}  // namespace volvelle::cli
