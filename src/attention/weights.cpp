// Scores by plain loops over the visible parts of each segment, then a softmax whose sum is in
// double.
//
// Rows become floats through load_row, so every storage type is served by its own exact decoding.
// Products are summed in independent float lanes, which compilers vectorise; about sqrt(dim) 2^-24
// of a score is rounding. Cost as stated in the header.
#include "volvelle/attention/weights.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "attention/rows.hpp"
#include "kernels/convert.hpp"

namespace volvelle {
namespace {

/// Query heads [first, first + n) of one KV head.
struct HeadRange {
  int first = 0;
  int n = 0;
};

float dot(const float* a, const float* b, int n) noexcept {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[i % kLanes] += a[i] * b[i];
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum;
}

float capped(const AttentionShape& shape, float product) noexcept {
  const float s = shape.scale * product;
  return shape.soft_cap > 0.0f ? shape.soft_cap * std::tanh(s / shape.soft_cap) : s;
}

struct Queries {
  const AttendTask* task = nullptr;
  std::int64_t token = 0;
  HeadRange heads;
};

/// Scores of the rows that `range` and `segment` share; out[h * stride] is head h's score of row
/// range.begin.
void score_rows(const Queries& queries, RowRange range, const KeyValueSegment& segment, float* out,
                std::int64_t stride) noexcept {
  const AttendTask& task = *queries.task;
  const AttentionShape& shape = task.shape;
  const HeadRange heads = queries.heads;
  const RowRange part = intersect({segment.first_row, segment.first_row + segment.n_rows}, range);
  const auto kv_head = static_cast<std::size_t>(heads.first / shape.group());
  const std::size_t bytes = row_bytes(shape.k_type, shape.head_dim_k);
  const std::byte* const keys = segment.k + kv_head * segment.k_head_stride;
  const float* const q =
      task.q + queries.token * task.q_token_stride + heads.first * task.q_head_stride;
  float key[kMaxHeadDim];
  for (std::int64_t row = part.begin; row < part.end; ++row) {
    load_row(keys + static_cast<std::size_t>(row - segment.first_row) * bytes, shape.k_type, key,
             shape.head_dim_k);
    for (int h = 0; h < heads.n; ++h) {
      const float product = dot(q + h * task.q_head_stride, key, shape.head_dim_k);
      out[h * stride + row - range.begin] = capped(shape, product);
    }
  }
}

/// Scores become weights in place; returns the share of the learned sink.
double normalize(std::span<float> scores, const float* sink) noexcept {
  float max = sink != nullptr ? *sink : -std::numeric_limits<float>::infinity();
  for (const float s : scores) max = s > max ? s : max;
  const double sink_term = sink != nullptr ? std::exp(*sink - max) : 0.0;
  double sum = sink_term;
  for (float& s : scores) sum += s = std::exp(s - max);
  const auto factor = static_cast<float>(1.0 / sum);
  for (float& s : scores) s *= factor;
  return sink != nullptr ? sink_term / sum : 0.0;
}

void score_visible(const Queries& queries, float* out, std::int64_t n) noexcept {
  const VisibleRows& visible = queries.task->visible[static_cast<std::size_t>(queries.token)];
  const RowRange sinks{0, visible.sink_end};
  const RowRange window{visible.begin, visible.end};
  for (const KeyValueSegment& segment : queries.task->segments) {
    score_rows(queries, sinks, segment, out, n);
    score_rows(queries, window, segment, out + sinks.size(), n);
  }
}

const float* sink_of(const AttendTask& task, int head) noexcept {
  return task.sink_logits != nullptr ? task.sink_logits + head : nullptr;
}

void require(bool condition, const char* message) {
  if (!condition) throw std::logic_error(message);
}

std::int64_t n_visible_of(const AttendTask& task, std::int64_t token) {
  require(token >= 0 && token < task.n_tokens(), "attention weights: no such token in the task");
  return n_visible(task.visible[static_cast<std::size_t>(token)]);
}

}  // namespace

std::int64_t n_visible(const VisibleRows& visible) noexcept {
  return visible.sink_end + (visible.end - visible.begin);
}

std::int64_t visible_row(const VisibleRows& visible, std::int64_t i) noexcept {
  return i < visible.sink_end ? i : visible.begin + (i - visible.sink_end);
}

double attention_weights(const AttendTask& task, std::int64_t token, int head,
                         std::span<float> out) {
  const std::int64_t n = n_visible_of(task, token);
  require(head >= 0 && head < task.shape.n_heads, "attention weights: no such head");
  require(static_cast<std::int64_t>(out.size()) == n,
          "attention weights: one entry for each visible row is needed");
  score_visible({&task, token, {head, 1}}, out.data(), n);
  return normalize(out, sink_of(task, head));
}

void group_attention_weights(const AttendTask& task, std::int64_t token, int kv_head,
                             std::span<float> out, std::span<double> sink_shares) {
  const std::int64_t n = n_visible_of(task, token);
  const int group = task.shape.group();
  require(kv_head >= 0 && kv_head < task.shape.n_kv_heads, "attention weights: no such KV head");
  require(static_cast<std::int64_t>(out.size()) == group * n,
          "attention weights: one entry for each head of the group and visible row is needed");
  require(sink_shares.empty() || static_cast<int>(sink_shares.size()) == group,
          "attention weights: one sink share for each head of the group is needed");
  score_visible({&task, token, {kv_head * group, group}}, out.data(), n);
  for (int h = 0; h < group; ++h) {
    const double share =
        normalize(out.subspan(static_cast<std::size_t>(h * n), static_cast<std::size_t>(n)),
                  sink_of(task, kv_head * group + h));
    if (!sink_shares.empty()) sink_shares[static_cast<std::size_t>(h)] = share;
  }
}

}  // namespace volvelle
