// Reads stored rows back, the slow and obvious way, and makes rows with known contents.
//
// Used by tests that must know what a store contains without trusting the kernels: halves are
// converted by the scalar functions of base/half.hpp. Cost: one search over the segments per row.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "volvelle/base/half.hpp"
#include "volvelle/memory/kv_store.hpp"

namespace volvelle::testing {

enum class Side { kKey, kValue };

inline int row_dim(const LayerShape& shape, Side side) {
  return side == Side::kKey ? shape.head_dim_k : shape.head_dim_v;
}

template <class T>
T number_at(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

/// Element i of a stored row.
inline float element_at(const std::byte* row, ElementType type, int i) {
  if (type == ElementType::kF32) return number_at<float>(row + 4 * i);
  if (type == ElementType::kF16) return f16_to_f32(number_at<std::uint16_t>(row + 2 * i));
  if (type == ElementType::kBF16) return bf16_to_f32(number_at<std::uint16_t>(row + 2 * i));
  const int at = i % 32;
  const bool wide = type == ElementType::kQ8_0;
  const std::byte* const block = row + (wide ? 34 : 18) * (i / 32);
  const float scale = f16_to_f32(number_at<std::uint16_t>(block));
  if (wide) return scale * number_at<std::int8_t>(block + 2 + at);
  const int pair = std::to_integer<int>(block[2 + at % 16]);
  return scale * static_cast<float>((at < 16 ? pair % 16 : pair / 16) - 8);
}

/// The stored row [n_kv_heads * dim], or nothing if no segment has it.
inline std::optional<std::vector<float>> read_row(const KvStore& store, int layer, Side side,
                                                  std::int64_t row) {
  const LayerShape& shape = store.layout().layers[static_cast<std::size_t>(layer)];
  const bool key = side == Side::kKey;
  const ElementType type = key ? store.layout().k_type : store.layout().v_type;
  const int dim = row_dim(shape, side);
  for (const KeyValueSegment& segment : store.segments(LayerIndex(layer))) {
    if (row < segment.first_row || row >= segment.first_row + segment.n_rows) continue;
    const auto offset = static_cast<std::size_t>(row - segment.first_row) * row_bytes(type, dim);
    std::vector<float> out;
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      const std::size_t stride = key ? segment.k_head_stride : segment.v_head_stride;
      const std::byte* data =
          (key ? segment.k : segment.v) + static_cast<std::size_t>(head) * stride + offset;
      for (int i = 0; i < dim; ++i) out.push_back(element_at(data, type, i));
    }
    return out;
  }
  return std::nullopt;
}

/// What a store of `type` gives back for `value`.
inline float stored(float value, ElementType type) {
  return type == ElementType::kF32 ? value : f16_to_f32(f32_to_f16(value));
}

/// Row number `id` of a layer: a fixed pseudo-random function of (id, layer, side, element) with
/// values in [-4, 4).
inline std::vector<float> known_row(std::uint64_t id, int layer, Side side,
                                    const LayerShape& shape) {
  std::vector<float> out(static_cast<std::size_t>(shape.n_kv_heads * row_dim(shape, side)));
  std::uint64_t x = (id * 64 + static_cast<std::uint64_t>(layer)) * 2 + (side == Side::kKey);
  for (float& value : out) {
    x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 29;
    value = static_cast<float>(x >> 40) * 0x1p-21f - 4.0f;
  }
  return out;
}

/// known_row() as the store gives it back.
inline std::vector<float> known_stored_row(std::uint64_t id, int layer, Side side,
                                           const StoreLayout& layout) {
  std::vector<float> row =
      known_row(id, layer, side, layout.layers[static_cast<std::size_t>(layer)]);
  for (float& value : row) {
    value = stored(value, side == Side::kKey ? layout.k_type : layout.v_type);
  }
  return row;
}

/// Writes known_row(id) as pending token `i` of all layers that store rows. `Sink` is KvStore or
/// ContextMemory.
template <class Sink>
void write_known(Sink& sink, std::int64_t i, std::uint64_t id) {
  const StoreLayout& layout = sink.layout();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    const LayerShape& shape = layout.layers[static_cast<std::size_t>(layer)];
    if (shape.n_kv_heads == 0) continue;
    sink.write_k(LayerIndex(layer), i, known_row(id, layer, Side::kKey, shape).data());
    sink.write_v(LayerIndex(layer), i, known_row(id, layer, Side::kValue, shape).data());
  }
}

/// True if row `row` of every layer that the store has rows of holds known_row(id).
inline bool holds_known(const KvStore& store, std::int64_t row, std::uint64_t id) {
  for (int layer = 0; layer < static_cast<int>(store.layout().layers.size()); ++layer) {
    if (store.layout().layers[static_cast<std::size_t>(layer)].n_kv_heads == 0) continue;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const auto found = read_row(store, layer, side, row);
      if (!found || *found != known_stored_row(id, layer, side, store.layout())) return false;
    }
  }
  return true;
}

/// Two layers of different shape, K and V of different size and type.
inline StoreLayout small_layout() {
  StoreLayout layout;
  layout.layers = {{1, 3, 2}, {2, 2, 5}};
  layout.k_type = ElementType::kF16;
  layout.v_type = ElementType::kF32;
  return layout;
}

}  // namespace volvelle::testing
