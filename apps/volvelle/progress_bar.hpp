// Progress of long work on stderr: a bar that redraws itself on a terminal, plain lines otherwise.
//
// Rate and time left come from the whole phase so far, so they are steady; the time left is an
// underestimate while the cost per token still grows with depth. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "volvelle/base/progress.hpp"

namespace volvelle::cli {

class ProgressBar {
 public:
  ProgressBar();
  void update(const Progress& progress);
  /// Ends the line of a bar on a terminal. Harmless when nothing was drawn.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string describe(const Progress& progress, double seconds) const;

  bool terminal_;
  bool line_open_ = false;
  std::string phase_;
  Clock::time_point phase_start_;
  Clock::time_point last_drawn_;
  std::int64_t first_done_ = 0;  // progress at the first call of the phase
};

}  // namespace volvelle::cli
