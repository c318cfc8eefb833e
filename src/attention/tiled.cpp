// Tiled path: query tiles x key tiles, bound by arithmetic, and the path whose bits never change.
//
// An item is one query tile of one KV head, or, where a task has too few tokens to keep the threads
// busy, one partition of its rows; items are taken from a shared counter, longest first within a
// task. Partitions end where attend_query_tile() closes states, and are merged as it does, so
// cutting changes no bit. Every thread makes the same plan.
#include <algorithm>
#include <array>

#include "attention/output.hpp"
#include "attention/paths.hpp"
#include "attention/query_tile.hpp"

namespace volvelle {
namespace {

/// The rows of a task's only query tile cut into partitions of `size` rows: those of the sinks,
/// then those of the window.
struct Partitions {
  std::int64_t size = 0;
  std::int64_t n_sinks = 0;       // partitions 0 .. n_sinks - 1
  std::int64_t first_window = 0;  // then this one and those behind it
  std::int64_t n = 0;

  RowRange rows_of(std::int64_t part) const noexcept {
    const std::int64_t number = part < n_sinks ? part : first_window + part - n_sinks;
    return {number * size, (number + 1) * size};
  }
};

/// No partitions if the tokens do not all close their states at the same rows.
Partitions partitions_of(const AttendTask& task) noexcept {
  Partitions p;
  p.size = partition_rows(task.visible.front());
  for (const VisibleRows& visible : task.visible) {
    if (partition_rows(visible) != p.size) return {};
  }
  p.n_sinks = (task.visible.back().sink_end + p.size - 1) / p.size;
  p.first_window = std::max(p.n_sinks, task.visible.front().begin / p.size);
  const std::int64_t end = (task.visible.back().end + p.size - 1) / p.size;
  p.n = p.n_sinks + std::max<std::int64_t>(0, end - p.first_window);
  return p;
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

struct TaskPlan {
  std::int64_t per_tile = 0;
  std::int64_t n_tiles = 0;
  std::int64_t end_item = 0;  // of all tasks up to this one
  Partitions parts;           // n > 0: its one query tile is cut
  float* states = nullptr;    // then [part, KV head] states of all rows
};
using Plan = std::array<TaskPlan, kMaxTasks>;

std::int64_t head_states_floats(const AttendTask& task) noexcept {
  return states_floats(task.n_tokens() * task.shape.group(), pad_lanes(task.shape.head_dim_v));
}
RowStates states_of(const AttendTask& task, const TaskPlan& plan, std::int64_t part,
                    int head) noexcept {
  float* const memory =
      plan.states + (part * task.shape.n_kv_heads + head) * head_states_floats(task);
  return place_states(memory, task.n_tokens() * task.shape.group(),
                      pad_lanes(task.shape.head_dim_v));
}

/// Cuts the task's rows if that keeps more threads busy and there is room for the states; returns
/// the floats that these take.
std::int64_t cut_rows(const AttendTask& task, int nth, std::int64_t room, TaskPlan& plan) noexcept {
  if (nth == 1 || plan.n_tiles > 1 || task.shape.n_kv_heads >= 4 * nth) return 0;
  const Partitions parts = partitions_of(task);
  const std::int64_t floats = parts.n * task.shape.n_kv_heads * head_states_floats(task);
  if (parts.n < 2 || floats > room) return 0;
  plan.parts = parts;
  return floats;
}

Plan make_plan(std::span<const AttendTask> tasks, const AttendWorkspace::Impl& workspace,
               int nth) noexcept {
  Plan plan;
  std::int64_t used = 0;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const AttendTask& task = tasks[i];
    if (takes_tiles(task)) {
      plan[i].per_tile = tokens_per_tile(task, nth);
      plan[i].n_tiles = (task.n_tokens() + plan[i].per_tile - 1) / plan[i].per_tile;
      plan[i].states = workspace.partitions + used;
      used += cut_rows(task, nth, workspace.partition_floats - used, plan[i]);
      end += plan[i].n_tiles * std::max<std::int64_t>(1, plan[i].parts.n) * task.shape.n_kv_heads;
    }
    plan[i].end_item = end;
  }
  return plan;
}

/// Item `item` of the task, counted from its first one. Returns whether what it wrote is finite.
bool run_item(const AttendTask& task, const TaskPlan& plan, std::int64_t item,
              AttendWorkspace::Impl::Thread& thread, float* arena) noexcept {
  const int head = static_cast<int>(item % task.shape.n_kv_heads);
  const std::int64_t index = item / task.shape.n_kv_heads;
  if (plan.parts.n == 0) {
    const std::int64_t first =
        (plan.n_tiles - 1 - index) * plan.per_tile;  // later tokens see more: longest first
    const std::int64_t end = std::min(task.n_tokens(), first + plan.per_tile);
    return attend_query_tile(query_tile(task, head, first, end, arena), thread.runs.data());
  }
  const QueryTile t = query_tile(task, head, 0, task.n_tokens(), arena);
  attend_partition(t, plan.parts.rows_of(index), thread.runs.data());
  const RowStates to = states_of(task, plan, index, head);
  std::copy_n(t.states.m, t.rows, to.m);
  std::copy_n(t.states.d, t.rows, to.d);
  std::copy_n(t.states.o, t.rows * to.o_stride, to.o);
  return true;
}

/// Merges the partitions of a task in ascending order and writes its outputs.
bool finish_task(const AttendTask& task, const TaskPlan& plan) noexcept {
  const int group = task.shape.group();
  bool finite = true;
  for (int head = 0; head < task.shape.n_kv_heads; ++head) {
    const RowStates merged = states_of(task, plan, 0, head);
    for (std::int64_t r = 0; r < task.n_tokens() * group; ++r) {
      const RowStates row = merged.from(r);
      for (std::int64_t part = 1; part < plan.parts.n; ++part)
        merge_state(row, states_of(task, plan, part, head).from(r), task.shape.head_dim_v);
      finite = write_output(task, r / group, head * group + static_cast<int>(r % group),
                            {row.o, *row.m, *row.d}) &&
               finite;
    }
  }
  return finite;
}

}  // namespace

void tiled_share(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                 ThreadOf thread) noexcept {
  if (std::none_of(tasks.begin(), tasks.end(), takes_tiles)) return;
  const Plan plan = make_plan(tasks, workspace, thread.nth);
  AttendWorkspace::Impl::Thread& mine = workspace.threads[static_cast<std::size_t>(thread.ith)];
  float* const arena = mine.arena + 2 * workspace.decode_slot_floats;
  bool finite = true;
  std::size_t at = 0;
  for (;;) {
    const std::int64_t item = workspace.next_item.fetch_add(1, std::memory_order_relaxed);
    while (at < tasks.size() && item >= plan[at].end_item) ++at;
    if (at == tasks.size()) break;
    const std::int64_t first = at == 0 ? 0 : plan[at - 1].end_item;
    finite = run_item(tasks[at], plan[at], item - first, mine, arena) && finite;
  }
  if (!finite) workspace.not_finite.store(true, std::memory_order_release);
}

void tiled_finish(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                  int nth) noexcept {
  if (std::none_of(tasks.begin(), tasks.end(), takes_tiles)) return;
  const Plan plan = make_plan(tasks, workspace, nth);
  bool finite = true;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (plan[i].parts.n > 0) finite = finish_task(tasks[i], plan[i]) && finite;
  }
  if (!finite) workspace.not_finite.store(true, std::memory_order_release);
}

}  // namespace volvelle
