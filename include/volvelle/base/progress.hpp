// Progress of long work: reported by the library, drawn by the program. A sink is called on the
// thread that works, so it must be quick. The fields are enough for a bar with rate and time left.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace volvelle {

struct Progress {
  std::string_view phase;  // "fold", "verify", ...
  std::int64_t done = 0;   // in `unit`
  std::int64_t total = 0;
  std::string_view unit;  // "tokens", "bytes"
};

/// Called on the thread that does the work, a few times a second at most.
using ProgressSink = std::function<void(const Progress&)>;

}  // namespace volvelle
