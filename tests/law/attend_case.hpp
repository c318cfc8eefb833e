// Seeded attention problems for the law tests: owns queries, rows cut into segments, outputs.
//
// Values are drawn as floats and stored in the requested type; the reference reads the stored
// values, so storage rounding is no part of any error. Segments lie in separate allocations with
// poisoned gaps, so a read outside of them shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/convert.hpp"
#include "volvelle/attention/attend.hpp"
#include "volvelle/attention/reference.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle::law {

struct CaseOptions {
  AttentionShape shape = {};
  std::int64_t n_rows = 0;
  std::vector<VisibleRows> visible = {};
  std::vector<std::int64_t> cuts = {};  // rows where a new segment begins
  bool learned_sinks = false;
  float amplitude = 1.0f;  // of queries
  std::uint32_t seed = 1;
};

/// Tokens first_token.. of a causal text with optional sinks and a window of block 64 (0: no
/// window).
inline std::vector<VisibleRows> causal(std::int64_t prefix, std::int64_t n_tokens,
                                       std::int64_t sinks = 0, std::int64_t window = 0) {
  std::vector<VisibleRows> visible;
  for (std::int64_t t = prefix; t < prefix + n_tokens; ++t) {
    const std::int64_t first =
        window == 0 ? 0 : std::max(sinks, std::max<std::int64_t>(0, (t + 1 - window) / 64 * 64));
    const std::int64_t sink_end = std::min(std::min(sinks, first), t + 1);
    visible.push_back({sink_end, std::max(first, sink_end), std::max(t + 1, first)});
  }
  return visible;
}

class Case {
 public:
  explicit Case(CaseOptions options) : options_(std::move(options)) {
    std::mt19937 random(options_.seed);
    std::normal_distribution<float> normal;
    const AttentionShape& s = options_.shape;
    const std::size_t heads = static_cast<std::size_t>(s.n_kv_heads);
    const auto rows = static_cast<std::size_t>(options_.n_rows);
    k_.resize(heads * rows * static_cast<std::size_t>(s.head_dim_k));
    v_.resize(heads * rows * static_cast<std::size_t>(s.head_dim_v));
    for (float& x : k_) x = normal(random);
    for (float& x : v_) x = normal(random);
    q_.resize(options_.visible.size() * static_cast<std::size_t>(s.n_heads * s.head_dim_k));
    for (float& x : q_) x = options_.amplitude * normal(random);
    for (int h = 0; h < s.n_heads; ++h) sinks_.push_back(2.0f * normal(random));
    cut(options_.cuts);
  }

  /// Stores the rows again, cut before the given rows.
  void cut(const std::vector<std::int64_t>& cuts) {
    segments_.clear();
    storage_.clear();
    std::vector<std::int64_t> borders = cuts;
    borders.insert(borders.begin(), 0);
    borders.push_back(options_.n_rows);
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      if (borders[i] < borders[i + 1]) store(borders[i], borders[i + 1]);
    }
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      segments_[i].k = storage_[2 * i].data();
      segments_[i].v = storage_[2 * i + 1].data();
    }
  }

  AttendTask task() {
    AttendTask t;
    const AttentionShape& s = options_.shape;
    t.shape = s;
    t.segments = segments_;
    t.visible = options_.visible;
    t.q = q_.data();
    t.q_head_stride = s.head_dim_k;
    t.q_token_stride = static_cast<std::ptrdiff_t>(s.n_heads) * s.head_dim_k;
    out_.assign(options_.visible.size() * static_cast<std::size_t>(s.n_heads * s.head_dim_v),
                std::numeric_limits<float>::quiet_NaN());
    t.out = out_.data();
    t.out_head_stride = s.head_dim_v;
    t.out_token_stride = static_cast<std::ptrdiff_t>(s.n_heads) * s.head_dim_v;
    if (options_.learned_sinks) t.sink_logits = sinks_.data();
    return t;
  }

  const CaseOptions& options() const { return options_; }
  std::vector<float>& q() { return q_; }
  std::vector<float>& k() { return k_; }  // [kv head, row, dim]; call cut() after a change
  std::vector<float>& v() { return v_; }
  const std::vector<float>& out() const { return out_; }

  float max_abs_v() const {
    float top = 0;
    for (const float x : v_) top = std::max(top, std::abs(x));
    return top;
  }

  /// Largest sum of |q_i k_i| * |scale| over all pairs: what rounding errors of scores are relative
  /// to.
  double score_size() const {
    const AttentionShape& s = options_.shape;
    double top = 0;
    for (std::size_t qi = 0; qi < q_.size() / static_cast<std::size_t>(s.head_dim_k); ++qi) {
      const int head = static_cast<int>(qi % static_cast<std::size_t>(s.n_heads)) / s.group();
      for (std::int64_t row = 0; row < options_.n_rows; ++row) {
        double sum = 0;
        const float* q = q_.data() + qi * static_cast<std::size_t>(s.head_dim_k);
        const float* k = k_.data() + (head * options_.n_rows + row) * s.head_dim_k;
        for (int i = 0; i < s.head_dim_k; ++i) sum += std::abs(static_cast<double>(q[i]) * k[i]);
        top = std::max(top, sum * std::abs(s.scale));
      }
    }
    return top;
  }

  /// Bound of |output - reference|. With u = 2^-24: a score is a chain of head_dim_k roundings plus
  /// the scaling of q, about (sqrt(dim) + 8) u score_size (probabilistic rounding analysis; 8
  /// covers scaling, tanh and the tail of the distribution). A weight is off by that, twice (itself
  /// and the denominator), plus 2e-7 of exp2, and sums over n rows add about 2 sqrt(n) u. A
  /// weighted mean of v is then off by that factor times max|v|.
  double tolerance() const {
    const double u = std::ldexp(1.0, -24);
    const double scores = (std::sqrt(options_.shape.head_dim_k) + 8) * u * score_size();
    return max_abs_v() *
           (2 * scores + 4e-7 + 2 * std::sqrt(static_cast<double>(options_.n_rows)) * u);
  }

 private:
  void store(std::int64_t begin, std::int64_t end) {
    const AttentionShape& s = options_.shape;
    KeyValueSegment segment;
    segment.first_row = begin;
    segment.n_rows = end - begin;
    const std::size_t gap = 3 * 16;  // poison between heads; not a multiple of a vector of floats
    segment.k_head_stride =
        static_cast<std::size_t>(end - begin) * row_bytes(s.k_type, s.head_dim_k) + gap;
    segment.v_head_stride =
        static_cast<std::size_t>(end - begin) * row_bytes(s.v_type, s.head_dim_v) + gap;
    storage_.push_back(stored(k_, s.k_type, s.head_dim_k, begin, end, segment.k_head_stride));
    storage_.push_back(stored(v_, s.v_type, s.head_dim_v, begin, end, segment.v_head_stride));
    segments_.push_back(segment);
  }

  std::vector<std::byte> stored(const std::vector<float>& rows, ElementType type, int dim,
                                std::int64_t begin, std::int64_t end, std::size_t stride) const {
    std::vector<std::byte> bytes(stride * static_cast<std::size_t>(options_.shape.n_kv_heads),
                                 std::byte{0xFF});  // NaN
    for (int h = 0; h < options_.shape.n_kv_heads; ++h) {
      for (std::int64_t r = begin; r < end; ++r) {
        convert_row(rows.data() + (h * options_.n_rows + r) * dim,
                    bytes.data() + static_cast<std::size_t>(h) * stride +
                        static_cast<std::size_t>(r - begin) * row_bytes(type, dim),
                    type, dim);
      }
    }
    return bytes;
  }

  CaseOptions options_;
  std::vector<float> q_, k_, v_, out_, sinks_;
  std::vector<std::vector<std::byte>> storage_;
  std::vector<KeyValueSegment> segments_;
};

inline AttendWorkspace workspace_for(const AttentionShape& shape, int threads = 4) {
  return AttendWorkspace::create(threads, shape.n_heads, shape.head_dim_k, shape.head_dim_v)
      .value();
}

inline double max_difference(const std::vector<float>& a, const std::vector<double>& b) {
  double top = a.size() == b.size() ? 0.0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    top = difference <= top ? top : difference;  // NaN wins and stays
  }
  return top;
}

inline AttentionShape shape_of(int kv_heads, int group, int dim_k, int dim_v,
                               ElementType k = ElementType::kF16,
                               ElementType v = ElementType::kF16) {
  AttentionShape s;
  s.n_kv_heads = kv_heads;
  s.n_heads = kv_heads * group;
  s.head_dim_k = dim_k;
  s.head_dim_v = dim_v;
  s.k_type = k;
  s.v_type = v;
  s.scale = 1.0f / std::sqrt(static_cast<float>(dim_k));
  return s;
}

/// Both a normal and a deterministic run against the reference.
inline void expect_reference(CaseOptions options, int threads = 2) {
  Case c(std::move(options));
  AttendWorkspace workspace = workspace_for(c.options().shape);
  AttendTask task = c.task();
  ASSERT_TRUE(validate(task.shape).ok());
  const std::vector<double> expected = reference_attend(task);
  const double tolerance = c.tolerance();
  for (const bool deterministic : {false, true}) {
    task = c.task();
    task.deterministic = deterministic;
    attend(task, workspace, threads);
    EXPECT_LE(max_difference(c.out(), expected), tolerance)
        << "deterministic " << deterministic << ", tokens " << task.n_tokens() << ", rows "
        << c.options().n_rows << ", group " << task.shape.group() << ", dims "
        << task.shape.head_dim_k << "/" << task.shape.head_dim_v << ", types "
        << to_string(task.shape.k_type) << "/" << to_string(task.shape.v_type);
    EXPECT_FALSE(workspace.take_not_finite());
  }
}

}  // namespace volvelle::law
