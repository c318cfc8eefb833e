// Reading graph nodes: how the engine names the tensors that we look for, and parameters of ops.
// The names are not promised by its public headers, so a change there shows as "layer N does not
// write keys once ...", never as a wrong answer.
#pragma once

#include <cstdlib>
#include <cstring>

#include "runtime/engine.hpp"

namespace volvelle {

inline constexpr const char* kKeyCachePrefix = "cache_k_l";
inline constexpr const char* kValueCachePrefix = "cache_v_l";

inline const ggml_tensor* base_tensor(const ggml_tensor* tensor) noexcept {
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
  return tensor;
}

/// Layer number of a cache tensor "<prefix><N>" (or a view of one), or -1.
inline std::int64_t cache_layer(const ggml_tensor* tensor, const char* prefix) noexcept {
  const char* name = base_tensor(tensor)->name;
  const std::size_t length = std::strlen(prefix);
  if (std::strncmp(name, prefix, length) != 0) return -1;
  char* end = nullptr;
  const long layer = std::strtol(name + length, &end, 10);
  return end != name + length && *end == '\0' ? layer : -1;
}

/// Parameter `index` of an op, as a float.
inline float op_param(const ggml_tensor* node, int index) noexcept {
  float value = 0;
  std::memcpy(&value, node->op_params + index, sizeof(value));
  return value;
}

}  // namespace volvelle
