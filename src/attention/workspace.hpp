// Inside of AttendWorkspace: one aligned arena per thread and the few shared atomics.
//
// A thread's arena serves one path at a time, so it is as large as the larger of the two. Sizes are
// for the widest vectors, so a workspace outlives a change of the instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "kernels/attend_tile.hpp"
#include "kernels/runs.hpp"
#include "volvelle/attention/attend.hpp"

namespace volvelle {

struct AlignedDelete {
  void operator()(float* p) const noexcept { ::operator delete(p, std::align_val_t(64)); }
};
using AlignedFloats = std::unique_ptr<float, AlignedDelete>;

/// Query rows per tile: large enough to hide the packing of a key tile, small enough that Q and O
/// stay in L2.
inline constexpr std::int64_t kTileQueryRows = 384;
inline constexpr std::int64_t kTileQueryRowsLargeHeads = 192;  // head dims above 128
constexpr std::int64_t tile_query_rows(std::int64_t head_dim) noexcept {
  return head_dim > 128 ? kTileQueryRowsLargeHeads : kTileQueryRows;
}

/// Floats of the arena of the tiled path: q, o, m, d, the key and value panels, weights.
constexpr std::int64_t tiled_floats(std::int64_t rows, std::int64_t dim_k,
                                    std::int64_t dim_v) noexcept {
  const std::int64_t k = pad_lanes(dim_k);
  const std::int64_t v = pad_lanes(dim_v);
  return rows * (k + v + 2) + kTileKeys * (k + v) + kTileKeys * kMaxGroupRows;
}

/// Floats of the arena of the decode path: the states (m, d, o) of all rows and the queries of one
/// KV head.
constexpr std::int64_t decode_floats(std::int64_t heads, std::int64_t dim_k,
                                     std::int64_t dim_v) noexcept {
  const std::int64_t rows = heads * kDecodeMaxTokens;
  return 2 * pad_lanes(rows) + rows * pad_lanes(dim_v) + rows * pad_lanes(dim_k);
}

struct AttendWorkspace::Impl {
  struct Thread {
    float* arena = nullptr;
    std::vector<KeyValueRun> runs;  // kDecodeBlock of them: a block has at most one run per row
  };

  int max_heads = 0;
  int max_head_dim_k = 0;
  int max_head_dim_v = 0;
  std::int64_t arena_floats = 0;
  AlignedFloats memory;
  std::vector<Thread> threads;

  alignas(64) std::atomic<std::int64_t> next_item{0};
  alignas(64) std::atomic<int> arrived{0};
  std::atomic<bool> not_finite{false};

  /// Whether this workspace is large enough for the shape on nth threads.
  bool fits(const AttentionShape& shape, int nth) const noexcept {
    return nth >= 1 && nth <= static_cast<int>(threads.size()) && shape.n_heads <= max_heads &&
           shape.head_dim_k <= max_head_dim_k && shape.head_dim_v <= max_head_dim_v;
  }
};

}  // namespace volvelle
