// Progress reports at most a few times a second, however often the work calls in.
//
// The first and the last report always go out, so a display can open and close its line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "volvelle/base/progress.hpp"

namespace volvelle {

class ProgressMeter {
 public:
  ProgressMeter(const ProgressSink& sink, std::string_view phase, std::string_view unit,
                std::int64_t total)
      : sink_(sink), state_{phase, 0, total, unit} {}

  void add(std::int64_t n) {
    const bool first = state_.done == 0;
    state_.done += n;
    const auto now = std::chrono::steady_clock::now();
    if (!sink_ || (!first && state_.done < state_.total && now - last_ < kInterval)) return;
    last_ = now;
    sink_(state_);
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{250};
  const ProgressSink& sink_;
  Progress state_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace volvelle
