// What a query sees, as a rule on positions: the sinks [0, sinks) and [begin(t), t].
//
//   begin(t) = max(sinks, block * floor((t + 1 - tokens) / block))        tokens = 0: begin(t) = 0
//
// A layer with a sliding window of its own sees (t - n, t], n the narrower of its window and the
// spec's, and no sinks: never more than the model was made to see. The other layers follow the
// spec. A rule depends on t alone, so what a query sees does not depend on how the text was cut
// into chunks. begin() never decreases.
#pragma once

#include <compare>
#include <cstdint>

#include "volvelle/memory/memory_spec.hpp"

namespace volvelle {

struct WindowRule {
  std::int64_t sinks = 0;
  std::int64_t tokens = 0;  // 0: no window, everything is seen
  std::int64_t block = 1;
  std::int64_t spare = 0;  // positions kept before begin(), so that tokens can be taken back
  bool drops = false;      // whether rows that no later query sees are released
  auto operator<=>(const WindowRule&) const = default;

  /// First position behind the sinks that the query at position `t` sees.
  std::int64_t begin(std::int64_t t) const noexcept;
  /// First position behind the sinks that must have its row when the next query is at `length`.
  std::int64_t keep_from(std::int64_t length) const noexcept;
};

/// Spare positions of a layer with a window of its own.
inline constexpr std::int64_t kLayerWindowSpare = 256;

/// The rule of a layer whose own window is `layer_window` tokens (0: none) under `spec`.
WindowRule window_rule(const MemorySpec& spec, std::int64_t layer_window) noexcept;

}  // namespace volvelle
