// A query tile: the rows (token, head of the group) of some tokens of one KV head, token-major, in
// groups of up to 3 vectors; what it computes over key tiles, and where its states are closed.
//
// Key tiles begin at absolute multiples of kTileRows and are visited in ascending order. A row's
// state is closed and merged where the walk passes a multiple of partition_rows() of what its token
// sees, so partitions may also be computed one by one and merged later, to the same bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "attention/rows.hpp"
#include "attention/state.hpp"
#include "attention/workspace.hpp"
#include "kernels/attend_tile.hpp"

namespace volvelle {

/// Rows between two closings of a token's states: at most kMaxPartitions partitions are not empty.
inline std::int64_t partition_rows(const VisibleRows& visible) noexcept {
  const std::int64_t n = visible.sink_end + visible.end - visible.begin;
  const auto least = static_cast<std::uint64_t>((n + 63) / 64);
  return std::max(kPartitionRows, static_cast<std::int64_t>(std::bit_ceil(least)));
}

/// One thread's view of its arena and of the query tile at work.
struct QueryTile {
  const AttendTask* task = nullptr;
  int head = 0;  // KV head
  std::int64_t first_token = 0;
  std::int64_t end_token = 0;
  std::int64_t lanes = 0;
  std::int64_t rows = 0;         // of queries
  std::int64_t padded_rows = 0;  // to whole vectors
  ScoreScale scale;

  float* q = nullptr;  // group after group: [head_dim_k, rows of the group]
  RowStates states;    // of the partition at work, [padded_rows]
  RowStates merged;    // of the partitions before it
  float* weights = nullptr;
  TilePanels panels;

  std::int64_t token_of(std::int64_t row) const noexcept {
    return first_token + std::min(row, rows - 1) /
                             task->shape.group();  // padding rows copy the last one's limits
  }
  int head_of(std::int64_t row) const noexcept {
    const int group = task->shape.group();
    return head * group + static_cast<int>(row % group);
  }
  /// The row behind the last one that has the same limits as `row`.
  std::int64_t rows_until(std::int64_t row) const noexcept {
    const std::int64_t group = task->shape.group();
    const std::int64_t next = (row / group + 1) * group;
    return next < rows ? next : padded_rows;
  }
  const VisibleRows& visible_of(std::int64_t row) const noexcept {
    return task->visible[static_cast<std::size_t>(token_of(row))];
  }
  const VisibleRows& first_visible() const noexcept {
    return task->visible[static_cast<std::size_t>(first_token)];
  }
  const VisibleRows& last_visible() const noexcept {
    return task->visible[static_cast<std::size_t>(end_token - 1)];
  }
};

/// Tokens [first_token, end_token) of KV head `head`, laid out in a thread's arena.
QueryTile query_tile(const AttendTask& task, int head, std::int64_t first_token,
                     std::int64_t end_token, float* arena) noexcept;

/// All rows, then the outputs. Returns whether they are finite.
bool attend_query_tile(const QueryTile& t, KeyValueRun* runs) noexcept;

/// Only `rows`, which lie between two neighbouring multiples of partition_rows() of all its tokens;
/// leaves the result in t.states.
void attend_partition(const QueryTile& t, RowRange rows, KeyValueRun* runs) noexcept;

}  // namespace volvelle
