// The one clock of timings. Private to the library.
#pragma once

#include <chrono>

namespace volvelle {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace volvelle
