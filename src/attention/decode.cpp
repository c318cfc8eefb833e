// Decode path: few query tokens, bound by the reading of K and V.
//
// The linear list of [task][KV head][block of kDecodeBlock rows at absolute multiples] is split
// over the threads by work. A head whose blocks all fall to one thread is finished there; of the
// others each thread keeps at most two, the one that began before its share and the one that goes
// on behind it, and the last thread to arrive merges them in the order of the list. Tokens that see
// the same rows of a block share one reading of it. Cost: one pass over the visible rows per KV
// head.
#include "attention/output.hpp"
#include "attention/paths.hpp"
#include "attention/rows.hpp"
#include "attention/state.hpp"
#include "kernels/attend_decode.hpp"

namespace volvelle {
namespace {

/// Rows that some token of the task sees (or lies between, if the tokens' windows leave a gap),
/// numbered without holes.
class UnionRows {
 public:
  explicit UnionRows(std::span<const VisibleRows> visible) noexcept
      : sinks_{0, visible.back().sink_end},
        window_{std::max(visible.front().begin, visible.back().sink_end), visible.back().end} {}

  std::int64_t size() const noexcept { return sinks_.size() + window_.size(); }
  std::int64_t row_at(std::int64_t index) const noexcept {
    return index < sinks_.size() ? index : window_.begin + (index - sinks_.size());
  }
  /// Index of the first row of the union at or after `row`.
  std::int64_t index_from(std::int64_t row) const noexcept {
    if (row < sinks_.end) return row;
    return sinks_.size() + std::clamp<std::int64_t>(row - window_.begin, 0, window_.size());
  }

 private:
  RowRange sinks_;
  RowRange window_;
};

/// What a thread needs for one KV head: scaled queries, and states ordered [token][head of the
/// group].
struct HeadScratch {
  float* q = nullptr;
  std::ptrdiff_t q_stride = 0;
  RowStates states;
};

/// Place `slot` for a head's states in a thread's arena: 0 for a head that began before the share,
/// 1 for one that goes on behind it, 2 for one that is all its own.
enum Slot : int { kBeganBefore = 0, kGoesOn = 1, kWhole = 2, kSlots = 3 };

RowStates states_in(const AttendTask& task, const AttendWorkspace::Impl& workspace, float* arena,
                    int slot) noexcept {
  return place_states(arena + slot * workspace.decode_slot_floats,
                      task.n_tokens() * task.shape.group(), pad_lanes(task.shape.head_dim_v));
}

/// Scales the queries of KV head `head` into scratch and clears its states.
void open_head(const AttendTask& task, int head, const HeadScratch& s) noexcept {
  const int group = task.shape.group();
  const std::int64_t rows = task.n_tokens() * group;
  const float scale = score_scale(task.shape).query;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* q =
        task.q + r / group * task.q_token_stride + (head * group + r % group) * task.q_head_stride;
    float* scaled = s.q + r * s.q_stride;
    for (int i = 0; i < task.shape.head_dim_k; ++i) scaled[i] = q[i] * scale;
    std::fill(scaled + task.shape.head_dim_k, scaled + s.q_stride, 0.0f);
  }
  clear_states(s.states, rows);
}

/// One block of one KV head for all tokens; consecutive tokens that see the same part of it go
/// together.
void attend_one_block(const AttendTask& task, int head, RowRange rows, const HeadScratch& s,
                      KeyValueRun* runs) noexcept {
  const AttentionShape& shape = task.shape;
  const std::int64_t n_tokens = task.n_tokens();
  const int group = shape.group();
  for (std::int64_t token = 0; token < n_tokens;) {
    const VisiblePart part = visible_part(task.visible[static_cast<std::size_t>(token)], rows);
    std::int64_t next = token + 1;
    while (next < n_tokens &&
           same_rows(part, visible_part(task.visible[static_cast<std::size_t>(next)], rows)))
      ++next;
    if (part.size() > 0) {
      std::int64_t n = append_runs(task, head, part.sinks, rows.begin, runs, 0);
      n = append_runs(task, head, part.window, rows.begin, runs, n);
      const RowStates states = s.states.from(token * group);
      DecodeBlock block;
      block.runs = runs;
      block.n_runs = static_cast<int>(n);
      block.k_type = shape.k_type;
      block.v_type = shape.v_type;
      block.head_dim_k = shape.head_dim_k;
      block.head_dim_v = shape.head_dim_v;
      block.cap_log2 = score_scale(shape).cap_log2;
      block.n_queries = static_cast<int>((next - token) * group);
      block.q = s.q + token * group * s.q_stride;
      block.q_stride = s.q_stride;
      block.m = states.m;
      block.d = states.d;
      block.o = states.o;
      block.o_stride = states.o_stride;
      attend_decode_block(block);
    }
    token = next;
  }
}

/// Writes the outputs of a KV head from its states. Returns whether they are finite.
bool write_head(const AttendTask& task, int head, const RowStates& states) noexcept {
  const int group = task.shape.group();
  bool finite = true;
  for (std::int64_t r = 0; r < task.n_tokens() * group; ++r) {
    const RowStates row = states.from(r);
    finite = write_output(task, r / group, head * group + static_cast<int>(r % group),
                          {row.o, *row.m, *row.d}) &&
             finite;
  }
  return finite;
}

/// The list of blocks of one task, and each block's place in the list of all tasks: that of its
/// first row, where a row counts as much as the kernel's passes over it.
class TaskBlocks {
 public:
  TaskBlocks(const AttendTask& task, std::int64_t base) noexcept
      : rows_(task.visible), base_(base), row_cost_(row_cost(task)) {}

  static std::int64_t row_cost(const AttendTask& task) noexcept {
    return 1 + task.n_tokens() * task.shape.group() / 4;
  }
  std::int64_t head_cost() const noexcept { return rows_.size() * row_cost_; }
  /// Index, in the union of rows, of the first row at or behind the place, within `head`.
  std::int64_t index_at(int head, std::int64_t place) const noexcept {
    const std::int64_t offset = place - base_ - head * head_cost();
    return std::max<std::int64_t>(0, offset / row_cost_);
  }
  RowRange block_of(std::int64_t index) const noexcept {
    const std::int64_t first = rows_.row_at(index) / kDecodeBlock * kDecodeBlock;
    return {first, first + kDecodeBlock};
  }
  std::int64_t place_of(int head, RowRange block) const noexcept {
    return base_ + head * head_cost() + rows_.index_from(block.begin) * row_cost_;
  }
  std::int64_t index_behind(RowRange block) const noexcept { return rows_.index_from(block.end); }
  std::int64_t size() const noexcept { return rows_.size(); }

 private:
  UnionRows rows_;
  std::int64_t base_;
  std::int64_t row_cost_;
};

std::int64_t total_cost(std::span<const AttendTask> tasks) noexcept {
  std::int64_t total = 0;
  for (const AttendTask& task : tasks) {
    if (takes_decode(task)) total += TaskBlocks(task, 0).head_cost() * task.shape.n_kv_heads;
  }
  return total;
}

/// The share of one thread: places [begin, end) of the list.
class Share {
 public:
  Share(AttendWorkspace::Impl& workspace, AttendWorkspace::Impl::Thread& thread, std::int64_t begin,
        std::int64_t end) noexcept
      : workspace_(workspace), thread_(thread), begin_(begin), end_(end) {
    for (AttendWorkspace::Impl::PartialHead& partial : thread_.partial) partial = {};
  }

  void attend_task(std::span<const AttendTask> tasks, std::size_t index,
                   std::int64_t base) noexcept {
    const AttendTask& task = tasks[index];
    const TaskBlocks blocks(task, base);
    for (int head = 0; head < task.shape.n_kv_heads; ++head) {
      const std::int64_t first = base + head * blocks.head_cost();
      if (first >= end_) return;
      if (first + blocks.head_cost() > begin_)
        attend_head(task, static_cast<int>(index), head, blocks);
    }
  }
  bool finite() const noexcept { return finite_; }

 private:
  void attend_head(const AttendTask& task, int task_index, int head,
                   const TaskBlocks& blocks) noexcept {
    const RowRange last_block = blocks.block_of(blocks.size() - 1);
    const bool begins_here = blocks.place_of(head, blocks.block_of(0)) >= begin_;
    const bool ends_here = blocks.place_of(head, last_block) < end_;
    const Slot slot = !begins_here ? kBeganBefore : (ends_here ? kWhole : kGoesOn);
    HeadScratch scratch;
    scratch.states = states_in(task, workspace_, thread_.arena, slot);
    scratch.q = thread_.arena + kSlots * workspace_.decode_slot_floats;
    scratch.q_stride = pad_lanes(task.shape.head_dim_k);
    bool open = false;
    for (std::int64_t i = blocks.index_at(head, begin_); i < blocks.size();) {
      const RowRange block = blocks.block_of(i);
      const std::int64_t place = blocks.place_of(head, block);
      if (place >= end_) break;
      if (place >= begin_) {
        if (!open) open_head(task, head, scratch);
        open = true;
        attend_one_block(task, head, block, scratch, thread_.runs.data());
      }
      i = blocks.index_behind(block);
    }
    if (!open) return;
    if (slot == kWhole) {
      finite_ = write_head(task, head, scratch.states) && finite_;
    } else {
      thread_.partial[slot] = {task_index, head};
    }
  }

  AttendWorkspace::Impl& workspace_;
  AttendWorkspace::Impl::Thread& thread_;
  std::int64_t begin_;
  std::int64_t end_;
  bool finite_ = true;
};

/// A task in which no token sees any row has no blocks; its outputs are zeros or the learned sink.
bool write_unseen(const AttendTask& task, const AttendWorkspace::Impl& workspace,
                  float* arena) noexcept {
  const RowStates states = states_in(task, workspace, arena, kWhole);
  clear_states(states, task.n_tokens() * task.shape.group());
  bool finite = true;
  for (int head = 0; head < task.shape.n_kv_heads; ++head)
    finite = write_head(task, head, states) && finite;
  return finite;
}

}  // namespace

void decode_share(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                  ThreadOf thread) noexcept {
  const std::int64_t total = total_cost(tasks);
  AttendWorkspace::Impl::Thread& mine = workspace.threads[static_cast<std::size_t>(thread.ith)];
  Share share(workspace, mine, total * thread.ith / thread.nth,
              total * (thread.ith + 1) / thread.nth);
  bool finite = true;
  std::int64_t base = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!takes_decode(tasks[i])) continue;
    const std::int64_t cost = TaskBlocks(tasks[i], 0).head_cost() * tasks[i].shape.n_kv_heads;
    if (cost == 0) {
      if (thread.ith == 0) finite = write_unseen(tasks[i], workspace, mine.arena) && finite;
    } else {
      share.attend_task(tasks, i, base);
    }
    base += cost;
  }
  if (!finite || !share.finite()) workspace.not_finite.store(true, std::memory_order_release);
}

void decode_finish(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                   int nth) noexcept {
  using Partial = AttendWorkspace::Impl::PartialHead;
  Partial open;
  RowStates merged;
  bool finite = true;
  const auto close = [&] {
    if (open.task < 0) return;
    finite = write_head(tasks[static_cast<std::size_t>(open.task)], open.head, merged) && finite;
  };
  for (int i = 0; i < nth; ++i) {
    AttendWorkspace::Impl::Thread& thread = workspace.threads[static_cast<std::size_t>(i)];
    for (const int slot : {kBeganBefore, kGoesOn}) {
      const Partial partial = thread.partial[slot];
      if (partial.task < 0) continue;
      const AttendTask& task = tasks[static_cast<std::size_t>(partial.task)];
      const RowStates states = states_in(task, workspace, thread.arena, slot);
      if (!(partial == open)) {
        close();
        open = partial;
        merged = states;
        continue;
      }
      for (std::int64_t r = 0; r < task.n_tokens() * task.shape.group(); ++r)
        merge_state(merged.from(r), states.from(r), task.shape.head_dim_v);
    }
  }
  close();
  if (!finite) workspace.not_finite.store(true, std::memory_order_release);
}

}  // namespace volvelle
