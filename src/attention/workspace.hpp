// Inside of AttendWorkspace: one aligned arena per thread and the few shared atomics.
//
// A thread's arena holds the states of decode heads that it shares with others, which must last
// until all threads have arrived, and behind them what one path needs at a time. Sizes are for the
// widest vectors, so a workspace outlives a change of the instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "attention/state.hpp"
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

/// Floats of the arena of the tiled path: q, two sets of states, the key and value panels, weights.
constexpr std::int64_t tiled_floats(std::int64_t rows, std::int64_t dim_k,
                                    std::int64_t dim_v) noexcept {
  const std::int64_t k = pad_lanes(dim_k);
  const std::int64_t v = pad_lanes(dim_v);
  return rows * k + 2 * states_floats(rows, v) + kTileKeys * (k + v) + kTileKeys * kMaxGroupRows;
}

/// Where a query row's states are closed and merged: at multiples of this many rows, counted from
/// row 0. A function of what the token sees alone, so that its bits do not depend on the call;
/// never more than kMaxPartitions of them.
inline constexpr std::int64_t kPartitionRows = 1024;
inline constexpr std::int64_t kMaxPartitions = 64 + 3;  // the ends of sinks and window are not full

struct AttendWorkspace::Impl {
  /// A KV head of a decode task of which this thread had only a part.
  struct PartialHead {
    int task = -1;
    int head = 0;
    bool operator==(const PartialHead&) const = default;
  };
  struct Thread {
    float* arena = nullptr;
    std::vector<KeyValueRun> runs;  // kDecodeBlock of them: a block has at most one run per row
    PartialHead partial[2];
  };

  int max_heads = 0;
  int max_head_dim_k = 0;
  int max_head_dim_v = 0;
  std::int64_t arena_floats = 0;
  std::int64_t decode_slot_floats = 0;  // of one KV head's states in the decode path
  std::int64_t partition_floats = 0;    // for states of partitions that different threads compute
  AlignedFloats memory;
  float* partitions = nullptr;
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
