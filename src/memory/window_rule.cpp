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
  const bool own_is_narrower =
      layer_window > 0 && (!spec.window || layer_window <= spec.window->tokens);
  if (own_is_narrower) return {0, layer_window, 1, kLayerWindowSpare, !spec.swa_full};
  if (!spec.window) return {};
  return {spec.sink.value_or(0), spec.window->tokens, spec.window->block, spec.window->block, true};
}

std::int64_t window_begin(const MemorySpec& spec, std::int64_t t) noexcept {
  return window_rule(spec, 0).begin(t);
}

}  // namespace volvelle
