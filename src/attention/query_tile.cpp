// The walk of a query tile over key tiles. Cost: packing each key tile once, and the products.
#include "attention/query_tile.hpp"

#include "attention/output.hpp"

namespace volvelle {
namespace {

/// Queries transposed per group and scaled; states empty.
void open_tile(const QueryTile& t) noexcept {
  const AttendTask& task = *t.task;
  clear_states(t.states, t.padded_rows);
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
      source[r] = task.q + t.token_of(first + r) * task.q_token_stride +
                  t.head_of(first + r) * task.q_head_stride;
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
  add({0, t.last_visible().sink_end});
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
    const RowStates states = t.states.from(first);
    group.m = states.m;
    group.d = states.d;
    group.o = states.o;
    attend_tile_group(group);
  }
}

/// Calls visit(tile) for the key tiles of `rows` that may hold something visible, ascending.
template <class Visit>
void for_each_key_tile(const QueryTile& t, RowRange rows, Visit visit) noexcept {
  const std::int64_t sinks = t.last_visible().sink_end;
  const std::int64_t window = t.first_visible().begin / kTileKeys * kTileKeys;
  const std::int64_t end = std::min(rows.end, std::max(sinks, t.last_visible().end));
  std::int64_t begin = rows.begin < sinks ? rows.begin : std::max(rows.begin, window);
  while (begin < end) {
    const RowRange tile{begin, begin + kTileKeys};
    visit(tile);
    begin = tile.end >= sinks ? std::max(tile.end, window) : tile.end;
  }
}

/// Merges the states of the rows whose partition ends between key tiles at `last` and `next`.
void close_partitions(const QueryTile& t, std::int64_t last, std::int64_t next) noexcept {
  if (last / kPartitionRows == next / kPartitionRows) return;
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const std::int64_t size = partition_rows(t.visible_of(r));
    if (last / size == next / size) continue;
    merge_state(t.merged.from(r), t.states.from(r), t.task->shape.head_dim_v);
    clear_states(t.states.from(r), 1);
  }
}

}  // namespace

QueryTile query_tile(const AttendTask& task, int head, std::int64_t first_token,
                     std::int64_t end_token, float* arena) noexcept {
  const AttentionShape& shape = task.shape;
  const std::int64_t k = pad_lanes(shape.head_dim_k);
  const std::int64_t v = pad_lanes(shape.head_dim_v);
  QueryTile t;
  t.task = &task;
  t.head = head;
  t.first_token = first_token;
  t.end_token = end_token;
  t.lanes = tile_lanes();
  t.rows = (end_token - first_token) * shape.group();
  t.padded_rows = (t.rows + t.lanes - 1) / t.lanes * t.lanes;
  t.scale = score_scale(shape);
  t.panels.k = arena;
  t.panels.v = t.panels.k + kTileKeys * k;
  t.weights = t.panels.v + kTileKeys * v;
  t.q = t.weights + kTileKeys * kMaxGroupRows;
  t.states = place_states(t.q + pad_lanes(t.padded_rows) * k, t.padded_rows, v);
  t.merged = place_states(t.states.m + states_floats(t.padded_rows, v), t.padded_rows, v);
  t.panels.head_dim_k = shape.head_dim_k;
  t.panels.head_dim_v = shape.head_dim_v;
  t.panels.k_type = shape.k_type;
  t.panels.v_type = shape.v_type;
  return t;
}

bool attend_query_tile(const QueryTile& t, KeyValueRun* runs) noexcept {
  open_tile(t);
  std::fill_n(t.merged.d, t.padded_rows, 0.0f);  // empty: m and o are not looked at
  std::int64_t last = -1;
  const RowRange all{0, std::max(t.last_visible().sink_end, t.last_visible().end)};
  for_each_key_tile(t, all, [&](RowRange tile) {
    if (last >= 0) close_partitions(t, last, tile.begin);
    last = tile.begin;
    if (pack_visible(t, tile, runs)) attend_key_tile(t, tile);
  });
  bool finite = true;
  for (std::int64_t r = 0; r < t.rows; ++r) {
    RowStates row = t.states.from(r);
    if (*t.merged.from(r).d != 0.0f) {
      merge_state(t.merged.from(r), row, t.task->shape.head_dim_v);
      row = t.merged.from(r);
    }
    finite = write_output(*t.task, t.token_of(r), t.head_of(r), {row.o, *row.m, *row.d}) && finite;
  }
  return finite;
}

void attend_partition(const QueryTile& t, RowRange rows, KeyValueRun* runs) noexcept {
  open_tile(t);
  for_each_key_tile(t, rows, [&](RowRange tile) {
    if (pack_visible(t, tile, runs)) attend_key_tile(t, tile);
  });
}

}  // namespace volvelle
