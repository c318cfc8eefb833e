// The small transformer of toy_transformer.hpp on the library's memory, and its state as numbers.
#pragma once

#include <cmath>

#include "law/memory_driver.hpp"
#include "law/store_reader.hpp"
#include "law/toy_transformer.hpp"

namespace volvelle::testing {

inline MemoryDriver toy_driver(const DriverOptions& options = {}) {
  AttentionShape shape;
  shape.n_heads = kToyHeads.n_heads;
  shape.n_kv_heads = kToyHeads.n_kv_heads;
  shape.head_dim_k = kToyHeads.head_dim;
  shape.head_dim_v = kToyHeads.head_dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(kToyHeads.head_dim));
  return MemoryDriver(std::vector<AttentionShape>(kToyLayers, shape), options);
}

/// Logits of the whole text, folded in chunks on a fresh memory.
inline std::vector<float> driver_logits(const ToyNet<Fp32>& net, std::span<const TokenId> tokens,
                                        std::int64_t chunk, const DriverOptions& options = {},
                                        Order order = Order::kFixed) {
  MemoryDriver driver = toy_driver(options);
  return toy_fold(net, driver, tokens, chunk, order);
}

/// K and V of rows [begin, end) of every layer, in order; missing rows are an error of the test.
inline std::vector<float> state_rows(const KvStore& store, std::int64_t begin, std::int64_t end) {
  std::vector<float> out;
  for (int layer = 0; layer < static_cast<int>(store.layout().layers.size()); ++layer) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      for (std::int64_t row = begin; row < end; ++row) {
        const auto values = read_row(store, layer, side, row);
        EXPECT_TRUE(values.has_value()) << "row " << row;
        if (values) out.insert(out.end(), values->begin(), values->end());
      }
    }
  }
  return out;
}

/// Empty if the memory is what a fold of n_consumed tokens leaves; else what is wrong with it.
inline std::string state_defect(const ContextMemory& memory, std::int64_t n_consumed) {
  const auto positions = memory.groups().front().store().positions();
  if (memory.length() != n_consumed) return "length is not the number of tokens";
  if (memory.groups().front().store().n_rows() != n_consumed)
    return "number of rows is not the number of tokens";
  for (std::size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] != Position(static_cast<std::int64_t>(row))) {
      return "positions are not 0 to P - 1, each once";
    }
  }
  return {};
}

}  // namespace volvelle::testing
