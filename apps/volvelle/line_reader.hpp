// Lines from stdin, below stdio: a signal or a cancelled token ends the waiting, which std::getline
// would go on with. A backslash at the end of a line continues it on the next one.
#pragma once

#include <string>

#include "volvelle/base/cancel.hpp"

namespace volvelle::cli {

class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kCancelled, kFailed };

  explicit LineReader(CancelToken cancel) : cancel_(std::move(cancel)) {}
  /// Waits for a whole line, without its end. A last line without an end is one too.
  Outcome read(std::string& line);

 private:
  Outcome read_physical(std::string& line);
  Outcome fill();

  CancelToken cancel_;
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace volvelle::cli
