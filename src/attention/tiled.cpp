// Tiled path: query tiles x key tiles, bound by arithmetic, and the path whose bits never change.
//
// An item is one query tile of one KV head; items are taken longest first from a shared counter. A
// query tile holds the rows (token, head of the group), token-major, in groups of up to 3 vectors.
// Key tiles begin at absolute multiples of kTileRows and are visited in ascending order, so a row's
// result does not depend on how tokens are tiled, chunked or spread.
#include <algorithm>
#include <limits>

#include "attention/output.hpp"
#include "attention/paths.hpp"
#include "attention/rows.hpp"
#include "kernels/attend_tile.hpp"

namespace volvelle {
namespace {

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
  float* o = nullptr;  // [padded_rows, o_stride]
  float* m = nullptr;
  float* d = nullptr;
  float* weights = nullptr;
  TilePanels panels;
  std::int64_t o_stride = 0;

  std::int64_t token_of(std::int64_t row) const noexcept {
    return first_token + std::min(row, rows - 1) /
                             task->shape.group();  // padding rows copy the last one's limits
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
};

/// Lays the tile out in the arena of thread `arena`.
void place(QueryTile& t, float* arena) noexcept {
  const AttentionShape& shape = t.task->shape;
  const std::int64_t k = pad_lanes(shape.head_dim_k);
  const std::int64_t v = pad_lanes(shape.head_dim_v);
  t.o_stride = v;
  t.panels.k = arena;
  t.panels.v = t.panels.k + kTileKeys * k;
  t.weights = t.panels.v + kTileKeys * v;
  t.q = t.weights + kTileKeys * kMaxGroupRows;
  t.o = t.q + t.padded_rows * k;
  t.m = t.o + t.padded_rows * v;
  t.d = t.m + t.padded_rows;
  t.panels.head_dim_k = shape.head_dim_k;
  t.panels.head_dim_v = shape.head_dim_v;
  t.panels.k_type = shape.k_type;
  t.panels.v_type = shape.v_type;
}

/// Queries transposed per group and scaled; states empty.
void open_tile(const QueryTile& t) noexcept {
  const AttendTask& task = *t.task;
  const int group = task.shape.group();
  std::fill_n(t.m, t.padded_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(t.d, t.padded_rows, 0.0f);
  std::fill_n(t.o, t.padded_rows * t.o_stride, 0.0f);
  const std::int64_t step = kGroupVectors * t.lanes;
  for (std::int64_t first = 0; first < t.padded_rows; first += step) {
    const float* source[kMaxGroupRows];
    QueryGroup queries;
    queries.source = source;
    queries.stride = std::min(step, t.padded_rows - first);
    queries.n_rows = std::clamp<std::int64_t>(t.rows - first, 0, queries.stride);
    queries.dim = task.shape.head_dim_k;
    queries.scale = t.scale.query;
    queries.q = t.q + first * queries.dim;
    for (std::int64_t r = 0; r < queries.n_rows; ++r) {
      const std::int64_t row = first + r;
      source[r] = task.q + t.token_of(row) * task.q_token_stride +
                  (t.head * group + row % group) * task.q_head_stride;
    }
    pack_queries(queries);
  }
}

/// Packs the rows of the key tile that some token of the query tile sees. Rows that none sees are
/// zeros in the panels, because what lies there may be anything. Returns false if there are none.
bool pack_visible(const QueryTile& t, RowRange tile, KeyValueRun* runs) noexcept {
  const AttendTask& task = *t.task;
  std::int64_t done = tile.begin;  // rows below are packed or invisible
  std::int64_t n = 0;
  const auto add = [&](RowRange range) {
    range.begin = std::max(range.begin, done);
    range = intersect(range, tile);
    if (range.size() == 0) return;
    n = append_runs(task, t.head, range, tile.begin, runs, n);
    done = range.end;
  };
  add({0, task.visible[static_cast<std::size_t>(t.end_token - 1)].sink_end});
  for (std::int64_t token = t.first_token; token < t.end_token; ++token) {
    const VisibleRows& visible = task.visible[static_cast<std::size_t>(token)];
    if (visible.begin >= tile.end) break;
    add({visible.begin, visible.end});
  }
  if (done == tile.begin) return false;
  pack_tile(runs, n, t.panels);
  return true;
}

/// Per-row limits relative to the tile, for groups that see it in part.
struct GroupLimits {
  alignas(64) float sink_end[kMaxGroupRows];
  alignas(64) float first[kMaxGroupRows];
  alignas(64) float last[kMaxGroupRows];
};

float relative(std::int64_t row, RowRange tile) noexcept {
  return static_cast<float>(std::clamp<std::int64_t>(row - tile.begin, 0, kTileKeys));
}

/// Sets the key range of the group and, if needed, its rows' limits. Returns false if the group
/// sees nothing of the tile.
bool set_limits(const QueryTile& t, std::int64_t first_row, std::int64_t rows, RowRange tile,
                GroupLimits& limits, TileGroup& group) noexcept {
  const VisibleRows& low = t.visible_of(first_row);
  const VisibleRows& high = t.visible_of(first_row + rows - 1);
  const RowRange sinks = intersect({0, high.sink_end}, tile);
  const RowRange window = intersect({low.begin, high.end}, tile);
  if (sinks.size() + window.size() == 0) return false;
  const bool all_in_sinks = low.sink_end >= tile.end;
  const bool all_in_window = high.begin <= tile.begin && low.end >= tile.end;
  if (all_in_sinks || all_in_window) {
    group.begin = 0;
    group.end = kTileKeys;
    group.sink_end = group.first = group.last = nullptr;
    return true;
  }
  group.begin = (sinks.size() > 0 ? sinks.begin : window.begin) - tile.begin;
  group.end = (window.size() > 0 ? std::max(window.end, sinks.end) : sinks.end) - tile.begin;
  for (std::int64_t r = 0; r < rows;) {  // the rows of one token share their limits
    const VisibleRows& visible = t.visible_of(first_row + r);
    const std::int64_t next = std::min(rows, t.rows_until(first_row + r) - first_row);
    const float sink_end = relative(visible.sink_end, tile);
    const float first = relative(visible.begin, tile);
    const float last = relative(visible.end, tile);
    for (; r < next; ++r) {
      limits.sink_end[r] = sink_end;
      limits.first[r] = first;
      limits.last[r] = last;
    }
  }
  group.sink_end = limits.sink_end;
  group.first = limits.first;
  group.last = limits.last;
  return true;
}

void attend_key_tile(const QueryTile& t, RowRange tile) noexcept {
  GroupLimits limits;
  const std::int64_t step = kGroupVectors * t.lanes;
  for (std::int64_t first = 0; first < t.padded_rows; first += step) {
    const std::int64_t rows = std::min(step, t.padded_rows - first);
    TileGroup group;
    if (!set_limits(t, first, rows, tile, limits, group)) continue;
    group.panels = &t.panels;
    group.n_vectors = rows / t.lanes;
    group.q = t.q + first * t.task->shape.head_dim_k;
    group.cap_log2 = t.scale.cap_log2;
    group.weights = t.weights;
    group.m = t.m + first;
    group.d = t.d + first;
    group.o = t.o + first * t.o_stride;
    attend_tile_group(group);
  }
}

/// All key tiles of one query tile, then its outputs. Returns whether they are finite.
bool attend_query_tile(const QueryTile& t, KeyValueRun* runs) noexcept {
  const AttendTask& task = *t.task;
  open_tile(t);
  const std::int64_t sinks = task.visible[static_cast<std::size_t>(t.end_token - 1)].sink_end;
  const std::int64_t window = task.visible[static_cast<std::size_t>(t.first_token)].begin;
  const std::int64_t end =
      std::max(sinks, task.visible[static_cast<std::size_t>(t.end_token - 1)].end);
  std::int64_t begin = sinks > 0 ? 0 : window / kTileKeys * kTileKeys;
  while (begin < end) {
    const RowRange tile{begin, begin + kTileKeys};
    if (pack_visible(t, tile, runs)) attend_key_tile(t, tile);
    begin = tile.end >= sinks ? std::max(tile.end, window / kTileKeys * kTileKeys) : tile.end;
  }
  bool finite = true;
  const int group = task.shape.group();
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const int head = t.head * group + static_cast<int>(r % group);
    finite =
        write_output(task, t.token_of(r), head, {t.o + r * t.o_stride, t.m[r], t.d[r]}) && finite;
  }
  return finite;
}

/// Tokens per query tile: as many as fit, fewer when the threads would not all get work. Any choice
/// gives the same bits.
std::int64_t tokens_per_tile(const AttendTask& task, int nth) noexcept {
  const AttentionShape& shape = task.shape;
  const std::int64_t group = shape.group();
  const std::int64_t most = tile_query_rows(std::max(shape.head_dim_k, shape.head_dim_v)) / group;
  const std::int64_t least = kMaxGroupRows / group;
  const std::int64_t wanted_tiles = (4 * nth + shape.n_kv_heads - 1) / shape.n_kv_heads;
  const std::int64_t balanced = (task.n_tokens() + wanted_tiles - 1) / wanted_tiles;
  return std::max<std::int64_t>(1, std::min(most, std::max(least, balanced)));
}

}  // namespace

void attend_tiled(const AttendTask& task, AttendWorkspace::Impl& workspace, int ith,
                  int nth) noexcept {
  AttendWorkspace::Impl::Thread& thread = workspace.threads[static_cast<std::size_t>(ith)];
  const std::int64_t per_tile = tokens_per_tile(task, nth);
  const std::int64_t n_tiles = (task.n_tokens() + per_tile - 1) / per_tile;
  const std::int64_t n_items = n_tiles * task.shape.n_kv_heads;
  QueryTile t;
  t.task = &task;
  t.lanes = tile_lanes();
  t.scale = score_scale(task.shape);
  bool finite = true;
  for (;;) {
    const std::int64_t item = workspace.next_item.fetch_add(1, std::memory_order_relaxed);
    if (item >= n_items) break;
    const std::int64_t tile =
        n_tiles - 1 - item / task.shape.n_kv_heads;  // later tokens see more: longest first
    t.head = static_cast<int>(item % task.shape.n_kv_heads);
    t.first_token = tile * per_tile;
    t.end_token = std::min(task.n_tokens(), t.first_token + per_tile);
    t.rows = (t.end_token - t.first_token) * task.shape.group();
    t.padded_rows = (t.rows + t.lanes - 1) / t.lanes * t.lanes;
    place(t, thread.arena);
    finite = attend_query_tile(t, thread.runs.data()) && finite;
  }
  if (!finite) workspace.not_finite.store(true, std::memory_order_release);
  if (workspace.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != nth) return;
  workspace.next_item.store(
      0, std::memory_order_relaxed);  // the caller's barrier publishes both to the next task
  workspace.arrived.store(0, std::memory_order_relaxed);
}

}  // namespace volvelle
