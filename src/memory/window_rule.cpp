// The arithmetic of windows. Cost: constant.
#include "volvelle/memory/window_rule.hpp"

#include <algorithm>

namespace volvelle {

std::int64_t WindowRule::begin(std::int64_t t) const noexcept {
  const std::int64_t behind = t - tokens + 1;
  // A window that reaches before the first token begins right after the sinks.
  if (tokens == 0 || behind <= 0) return sinks;
  return std::max(sinks, behind / block * block);
}

std::int64_t WindowRule::keep_from(std::int64_t length) const noexcept {
  if (!drops) return 0;
  return std::max(begin(length) - spare, std::min(sinks, length));
}

WindowRule window_rule(const MemorySpec& spec, std::int64_t layer_window) noexcept {
  if (layer_window > 0) {
    // Neither sinks nor the rest of a block: the model's own queries see nothing before its window.
    const std::int64_t tokens =
        spec.window ? std::min(layer_window, spec.window->tokens) : layer_window;
    return {0, tokens, 1, kLayerWindowSpare, !spec.swa_full};
  }
  if (!spec.window) return {};
  return {spec.sink.value_or(0), spec.window->tokens, spec.window->block, spec.window->block, true};
}

std::int64_t window_begin(const MemorySpec& spec, std::int64_t t) noexcept {
  return window_rule(spec, 0).begin(t);
}

}  // namespace volvelle
