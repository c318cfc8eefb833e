// Decode kernel: few queries of one KV head over one softmax block of rows, merged into their
// running states.
//
// m is kept in base 2 (scores already times log2 e). Every row of the block is seen by every query
// given. The result does not depend on how the rows are cut into runs, nor on the other queries.
#pragma once

#include <cstddef>

#include "kernels/runs.hpp"
#include "volvelle/base/element_type.hpp"

namespace volvelle {

inline constexpr int kDecodeBlockMax = 256;  // rows per call

struct DecodeBlock {
  const KeyValueRun* runs = nullptr;
  int n_runs = 0;
  ElementType k_type = ElementType::kF16;
  ElementType v_type = ElementType::kF16;
  int head_dim_k = 0;
  int head_dim_v = 0;
  float cap_log2 = 0.0f;  // soft cap * log2 e, or 0; with a cap q is scaled by scale / cap instead
                          // of scale * log2 e

  int n_queries = 0;
  const float* q = nullptr;  // [n_queries, q_stride], scaled, padded with zeros to
                             // pad_lanes(head_dim_k), aligned
  std::ptrdiff_t q_stride = 0;
  float* m = nullptr;  // [n_queries]
  float* d = nullptr;
  float* o = nullptr;  // [n_queries, o_stride], pad_lanes(head_dim_v) floats each, aligned
  std::ptrdiff_t o_stride = 0;
};

/// A NaN or infinity in q or K makes d NaN; one in V makes o not finite.
void attend_decode_block(const DecodeBlock& block) noexcept;

}  // namespace volvelle
