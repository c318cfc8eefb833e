// Plain loops in float64: no blocks, no vectors, nothing shared with the kernels but the task.
#include "volvelle/attention/reference.hpp"

#include <cmath>
#include <cstring>

#include "volvelle/base/half.hpp"

namespace volvelle {
namespace {

double half_at(const std::byte* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return f16_to_f32(bits);
}

double element(const std::byte* row, ElementType type, int i) {
  const int block = i / 32;
  const int at = i % 32;
  switch (type) {
    case ElementType::kF32: {
      float value;
      std::memcpy(&value, row + 4 * i, sizeof value);
      return value;
    }
    case ElementType::kF16:
      return half_at(row + 2 * i);
    case ElementType::kBF16: {
      std::uint16_t bits;
      std::memcpy(&bits, row + 2 * i, sizeof bits);
      return bf16_to_f32(bits);
    }
    case ElementType::kQ8_0: {
      const std::byte* const p = row + 34 * block;
      return half_at(p) * static_cast<double>(static_cast<std::int8_t>(p[2 + at]));
    }
    case ElementType::kQ4_0:
      break;
  }
  const std::byte* const p = row + 18 * block;
  const int pair = static_cast<int>(p[2 + at % 16]);
  return half_at(p) * ((at < 16 ? pair % 16 : pair / 16) - 8);
}

double score(const AttentionShape& shape, const float* q, const std::byte* k) {
  double dot = 0.0;
  for (int i = 0; i < shape.head_dim_k; ++i)
    dot += static_cast<double>(q[i]) * element(k, shape.k_type, i);
  const double s = dot * shape.scale;
  return shape.soft_cap > 0.0f ? shape.soft_cap * std::tanh(s / shape.soft_cap) : s;
}

bool sees(const VisibleRows& visible, std::int64_t row) {
  return row < visible.sink_end || (row >= visible.begin && row < visible.end);
}

}  // namespace

BasicAttentionState<double> reference_state(const AttendTask& task, std::int64_t token, int head) {
  const AttentionShape& shape = task.shape;
  const auto kv_head = static_cast<std::size_t>(head) / static_cast<std::size_t>(shape.group());
  const float* q = task.q + token * task.q_token_stride + head * task.q_head_stride;
  BasicAttentionState<double> state(static_cast<std::size_t>(shape.head_dim_v));
  for (const KeyValueSegment& segment : task.segments) {
    for (std::int64_t j = 0; j < segment.n_rows; ++j) {
      if (!sees(task.visible[static_cast<std::size_t>(token)], segment.first_row + j)) continue;
      const auto skip = static_cast<std::size_t>(j);
      const std::byte* k = segment.k + kv_head * segment.k_head_stride +
                           skip * row_bytes(shape.k_type, shape.head_dim_k);
      const std::byte* v = segment.v + kv_head * segment.v_head_stride +
                           skip * row_bytes(shape.v_type, shape.head_dim_v);
      BasicAttentionState<double> one(state.o.size());
      one.m = score(shape, q, k);
      one.d = 1.0;
      for (int i = 0; i < shape.head_dim_v; ++i)
        one.o[static_cast<std::size_t>(i)] = element(v, shape.v_type, i);
      merge_into(state, one);
    }
  }
  if (task.sink_logits != nullptr) {
    BasicAttentionState<double> sink(state.o.size());
    sink.m = task.sink_logits[head];
    sink.d = 1.0;
    merge_into(state, sink);
  }
  return state;
}

std::vector<double> reference_attend(const AttendTask& task) {
  std::vector<double> out;
  out.reserve(task.visible.size() *
              static_cast<std::size_t>(task.shape.n_heads * task.shape.head_dim_v));
  for (std::int64_t token = 0; token < task.n_tokens(); ++token) {
    for (int head = 0; head < task.shape.n_heads; ++head) {
      const std::vector<double> row = normalized(reference_state(task, token, head));
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

}  // namespace volvelle
