// Problems for reads through an index: structured rows, an index made of them, and the weights that
// a read really used.
#pragma once

#include <cmath>
#include <numeric>

#include "index/topk_workspace.hpp"
#include "law/attend_case.hpp"
#include "volvelle/base/half.hpp"
#include "volvelle/index/topk_read.hpp"

namespace volvelle::law {

/// Rows of unequal directions with a common mean, as keys have: a few directions carry most of the
/// variance, and queries like some of them.
class TopkCase {
 public:
  TopkCase(AttentionShape shape, std::int64_t n_rows, std::uint32_t seed, float amplitude = 1.0f)
      : plain({.shape = shape,
               .n_rows = n_rows,
               .visible = causal(n_rows - 1, 1),
               .cuts = {n_rows / 3},
               .amplitude = amplitude,
               .seed = seed}) {
    const auto spread = [](int i) { return 3.0f / (1.0f + 0.2f * static_cast<float>(i)); };
    auto& k = plain.k();
    for (std::size_t i = 0; i < k.size(); ++i) {
      const int d = static_cast<int>(i % static_cast<std::size_t>(shape.head_dim_k));
      k[i] = k[i] * spread(d) + (d == 1 ? 4.0f : 0.0f);
    }
    auto& v = plain.v();
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = v[i] * spread(static_cast<int>(i % static_cast<std::size_t>(shape.head_dim_v))) + 0.5f;
    plain.cut({n_rows / 3});
    std::mt19937 random(seed + 1000);
    std::normal_distribution<float> normal;
    queries.resize(static_cast<std::size_t>(256 * shape.n_heads * shape.head_dim_k));
    for (float& x : queries) x = normal(random);
    for (std::int64_t i = 0; i < 256; ++i) positions.push_back(n_rows - 256 + i);
  }

  /// `dither_seed`: of codes with a dither.
  CodeIndex make_index(const IndexOptions& options, std::uint64_t dither_seed = 1) {
    const AttendTask task = plain.task();
    auto code = make_layer_code(task.shape, task.segments, plain.options().n_rows,
                                {queries.data(), 256, positions.data()}, options);
    EXPECT_TRUE(code.ok()) << (code.ok() ? "" : code.error().message);
    CodeIndex index(std::make_shared<LayerCode>(std::move(*code)));
    CodeScratch scratch;
    scratch.salts.emplace(dither_seed);
    while ((index.n_tiles() + 1) * kCodeTile <= plain.options().n_rows) {
      const Status appended = index.append_tile(task.shape, task.segments, scratch);
      EXPECT_TRUE(appended.ok());
    }
    return index;
  }

  Case plain;
  std::vector<float> queries;
  std::vector<std::int64_t> positions;
};

inline TopkWorkspace make_topk_workspace(const AttentionShape& shape, int threads,
                                         std::int64_t n_tiles) {
  auto workspace =
      TopkWorkspace::create(threads, shape.n_heads, shape.head_dim_k, shape.head_dim_v);
  EXPECT_TRUE(workspace.ok());
  EXPECT_TRUE(workspace->reserve(n_tiles).ok());
  return std::move(*workspace);
}

/// Exact attention weights of one head, in double, [n_rows].
inline std::vector<double> exact_weights(const AttendTask& task, int head, Case& plain) {
  const AttentionShape& s = task.shape;
  const int kv = head / s.group();
  const std::int64_t n = plain.options().n_rows;
  std::vector<double> p(static_cast<std::size_t>(n));
  std::vector<float> row(static_cast<std::size_t>(s.head_dim_k));
  double top = -1e300;
  for (std::int64_t r = 0; r < n; ++r) {
    for (const KeyValueSegment& segment : task.segments) {
      if (r < segment.first_row || r >= segment.first_row + segment.n_rows) continue;
      load_row(
          segment.k + static_cast<std::size_t>(kv) * segment.k_head_stride +
              static_cast<std::size_t>(r - segment.first_row) * row_bytes(s.k_type, s.head_dim_k),
          s.k_type, row.data(), s.head_dim_k);
    }
    double score = 0.0;
    for (int i = 0; i < s.head_dim_k; ++i)
      score += static_cast<double>(task.q[head * task.q_head_stride + i]) *
               static_cast<double>(row[static_cast<std::size_t>(i)]);
    p[static_cast<std::size_t>(r)] = score * static_cast<double>(s.scale);
    top = std::max(top, p[static_cast<std::size_t>(r)]);
  }
  double sum = 0.0;
  for (double& x : p) sum += x = std::exp(x - top);
  for (double& x : p) x /= sum;
  return p;
}

/// Total variation between the weights that the last read of a single token used and the exact
/// ones.
inline double used_variation(const AttendTask& task, int head, Case& plain,
                             TopkWorkspace& workspace, const TopkPolicy& policy,
                             std::int64_t n_tiles) {
  const TopkWorkspace::Impl& w = workspace.impl();
  const int kv = head / task.shape.group();
  if (w.dense[static_cast<std::size_t>(kv)] != 0) return 0.0;
  const std::vector<double> p = exact_weights(task, head, plain);
  // Put the coded weights on the scale of the exact ones: both relative to the true sum.
  double top = -1e300;
  std::vector<double> score(p.size());
  const std::int64_t coded_rows = n_tiles * kCodeTile;
  std::vector<bool> exact(p.size(), false);
  for (std::size_t r = 0; r < p.size(); ++r)
    exact[r] =
        static_cast<std::int64_t>(r) < policy.sinks || static_cast<std::int64_t>(r) >= coded_rows;
  for (std::int64_t i = 0; i < w.n_selected[static_cast<std::size_t>(kv)]; ++i)
    exact[static_cast<std::size_t>(
        w.selected[static_cast<std::size_t>(kv * w.capacity_tiles * kCodeTile + i)])] = true;
  // Scores in base 2 up to a constant: log2 p for exact rows is relative to log2 Z; find Z from row
  // 0.
  std::vector<float> row0(static_cast<std::size_t>(task.shape.head_dim_k));
  const KeyValueSegment& first = task.segments.front();
  load_row(first.k + static_cast<std::size_t>(kv) * first.k_head_stride, task.shape.k_type,
           row0.data(), task.shape.head_dim_k);
  double score0 = 0.0;
  for (int i = 0; i < task.shape.head_dim_k; ++i)
    score0 += static_cast<double>(task.q[head * task.q_head_stride + i]) *
              static_cast<double>(row0[static_cast<std::size_t>(i)]);
  const double log_z =
      score0 * static_cast<double>(task.shape.scale) / std::log(2.0) - std::log2(p[0]);
  for (std::size_t r = 0; r < p.size(); ++r) {
    if (exact[r]) {
      score[r] = std::log2(p[r]) + log_z;
    } else if (!policy.coded_tail) {
      score[r] = -1e300;
    } else {
      const auto tile = static_cast<std::int64_t>(r) / kCodeTile;
      score[r] = std::log2(static_cast<double>(w.weights_of(head)[r])) +
                 std::log2(static_cast<double>(w.tile_m[head * w.capacity_tiles + tile])) +
                 static_cast<double>(w.top[static_cast<std::size_t>(head)]);
    }
    top = std::max(top, score[r]);
  }
  double sum = 0.0;
  for (double& s : score) sum += s = std::exp2(s - top);
  double variation = 0.0;
  for (std::size_t r = 0; r < p.size(); ++r) variation += std::abs(score[r] / sum - p[r]) / 2;
  return variation;
}

}  // namespace volvelle::law
