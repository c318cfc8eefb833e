// Rows are a pattern of 65,536 random rows' worth of numbers, repeated: filling stays cheap.
#include "problem.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "kernels/convert.hpp"
#include "volvelle/attention/reference.hpp"

namespace volvelle::bench {
namespace {

std::vector<float> normal_numbers(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

/// `n` rows of `dim` elements, a pattern of up to 1,021 rows over and over.
void fill(std::byte* to, ElementType type, int dim, std::int64_t n) {
  const std::int64_t pattern = std::min<std::int64_t>(n, 1021);
  const std::size_t row = row_bytes(type, dim);
  const std::vector<float> numbers =
      normal_numbers(static_cast<std::size_t>(pattern * dim), static_cast<std::uint32_t>(dim));
  for (std::int64_t r = 0; r < pattern; ++r)
    convert_row(numbers.data() + r * dim, to + static_cast<std::size_t>(r) * row, type, dim);
  for (std::int64_t r = pattern; r < n; r += pattern) {
    std::memcpy(to + static_cast<std::size_t>(r) * row, to,
                static_cast<std::size_t>(std::min(pattern, n - r)) * row);
  }
}

}  // namespace

AttentionShape shape_of(int kv_heads, int group, int dim, ElementType type) {
  AttentionShape s;
  s.n_kv_heads = kv_heads;
  s.n_heads = kv_heads * group;
  s.head_dim_k = s.head_dim_v = dim;
  s.k_type = s.v_type = type;
  s.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  return s;
}

std::string name_of(const AttentionShape& shape) {
  return std::string(to_string(shape.k_type)) + " D=" + std::to_string(shape.head_dim_k) +
         " G=" + std::to_string(shape.group()) + ", " + std::to_string(shape.n_kv_heads) +
         " KV heads";
}

Rows::Rows(const AttentionShape& shape, std::int64_t rows, int layers)
    : shape_(shape), rows_(rows), layers_(layers) {
  constexpr std::size_t kPage = std::size_t{2} << 20;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes() + kPage) / kPage * kPage));
  if (data_ == nullptr) {
    std::fprintf(stderr, "no memory for %zu MB of rows\n", bytes() >> 20);
    std::exit(1);
  }
  for (int layer = 0; layer < layers; ++layer) {
    const KeyValueSegment s = segment(layer);
    const std::int64_t n = rows * shape.n_kv_heads;
    fill(data_ + (s.k - data_), shape.k_type, shape.head_dim_k, n);
    fill(data_ + (s.v - data_), shape.v_type, shape.head_dim_v, n);
  }
}

Rows::~Rows() { std::free(data_); }

std::size_t Rows::layer_bytes(const AttentionShape& shape, std::int64_t rows) {
  return static_cast<std::size_t>(rows * shape.n_kv_heads) *
         (row_bytes(shape.k_type, shape.head_dim_k) + row_bytes(shape.v_type, shape.head_dim_v));
}

KeyValueSegment Rows::segment(int layer) const {
  KeyValueSegment s;
  s.n_rows = rows_;
  s.k_head_stride = static_cast<std::size_t>(rows_) * row_bytes(shape_.k_type, shape_.head_dim_k);
  s.v_head_stride = static_cast<std::size_t>(rows_) * row_bytes(shape_.v_type, shape_.head_dim_v);
  s.k = data_ + static_cast<std::size_t>(layer) * layer_bytes(shape_, rows_);
  s.v = s.k + static_cast<std::size_t>(shape_.n_kv_heads) * s.k_head_stride;
  return s;
}

Problem::Problem(const AttentionShape& s, std::int64_t prefix, std::int64_t tokens,
                 const Rows& rows)
    : q_(normal_numbers(static_cast<std::size_t>(tokens * s.n_heads * s.head_dim_k), 2)),
      out_(static_cast<std::size_t>(tokens * s.n_heads * s.head_dim_v)),
      segment_(rows.segment(0)) {
  for (std::int64_t t = prefix; t < prefix + tokens; ++t) visible_.push_back({0, 0, t + 1});
  task_.shape = s;
  task_.visible = visible_;
  task_.segments = {&segment_, 1};
  task_.q = q_.data();
  task_.q_head_stride = s.head_dim_k;
  task_.q_token_stride = static_cast<std::ptrdiff_t>(s.n_heads) * s.head_dim_k;
  task_.out = out_.data();
  task_.out_head_stride = s.head_dim_v;
  task_.out_token_stride = static_cast<std::ptrdiff_t>(s.n_heads) * s.head_dim_v;
}

void Problem::check(const char* name, const std::function<void()>& run) {
  std::fill(out_.begin(), out_.end(), 0.0f);
  run();
  double worst = 0.0;
  for (const std::int64_t token : {std::int64_t{0}, task_.n_tokens() - 1}) {
    for (const int head : {0, shape().n_heads - 1}) {
      const std::vector<double> expected = normalized(reference_state(task_, token, head));
      const float* got =
          out_.data() + token * task_.out_token_stride + head * task_.out_head_stride;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double difference = std::abs(got[i] - expected[i]);
        worst = difference <= worst ? worst : difference;  // NaN wins
      }
    }
  }
  if (worst <= 1e-4) return;
  std::fprintf(stderr, "%s: differs from float64 by %g\n", name, worst);
  std::exit(1);
}

double Problem::flops() const {
  double pairs = 0.0;
  for (const VisibleRows& v : visible_) pairs += static_cast<double>(v.end);
  return 2.0 * pairs * shape().n_heads * (shape().head_dim_k + shape().head_dim_v);
}

}  // namespace volvelle::bench
