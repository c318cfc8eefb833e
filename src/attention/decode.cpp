// Decode path: few query tokens, bound by the reading of K and V.
//
// The linear list of [KV head][block of kDecodeBlock rows at absolute multiples] is split over the
// threads by rows. Each thread keeps a partial state per (token, head); the last thread to arrive
// merges them. Tokens that see the same rows of a block share one reading of it.
#include <cmath>
#include <limits>

#include "attention/output.hpp"
#include "attention/paths.hpp"
#include "attention/rows.hpp"
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

/// States of all rows of a task in one thread's arena, ordered [KV head][token][head of the group].
struct PartialStates {
  float* m = nullptr;
  float* d = nullptr;
  float* o = nullptr;
  float* q = nullptr;  // scaled queries of the KV head at work
  std::ptrdiff_t o_stride = 0;
  std::ptrdiff_t q_stride = 0;
};

PartialStates partial_states(const AttendTask& task, float* arena) noexcept {
  const std::int64_t rows = task.n_tokens() * task.shape.n_heads;
  PartialStates s;
  s.o_stride = pad_lanes(task.shape.head_dim_v);
  s.q_stride = pad_lanes(task.shape.head_dim_k);
  s.m = arena;
  s.d = s.m + pad_lanes(rows);
  s.o = s.d + pad_lanes(rows);
  s.q = s.o + rows * s.o_stride;
  return s;
}

/// Scales the queries of KV head `head` into scratch and clears the head's states.
void open_head(const AttendTask& task, int head, float query_scale,
               const PartialStates& s) noexcept {
  const int group = task.shape.group();
  const std::int64_t rows = task.n_tokens() * group;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* q =
        task.q + r / group * task.q_token_stride + (head * group + r % group) * task.q_head_stride;
    float* scaled = s.q + r * s.q_stride;
    for (int i = 0; i < task.shape.head_dim_k; ++i) scaled[i] = q[i] * query_scale;
    std::fill(scaled + task.shape.head_dim_k, scaled + s.q_stride, 0.0f);
  }
  std::fill_n(s.o + head * rows * s.o_stride, rows * s.o_stride, 0.0f);
}

/// One block of one KV head for all tokens; consecutive tokens that see the same part of it go
/// together.
void attend_one_block(const AttendTask& task, int head, RowRange rows, const PartialStates& s,
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
      const std::int64_t state = (head * n_tokens + token) * group;
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
      block.m = s.m + state;
      block.d = s.d + state;
      block.o = s.o + state * s.o_stride;
      block.o_stride = s.o_stride;
      attend_decode_block(block);
    }
    token = next;
  }
}

/// The blocks whose first row has its place in [begin, end) of the list of all heads' rows.
void attend_share(const AttendTask& task, std::int64_t begin, std::int64_t end,
                  const PartialStates& s, KeyValueRun* runs) noexcept {
  const UnionRows rows(task.visible);
  const float query_scale = score_scale(task.shape).query;
  for (int head = 0; head < task.shape.n_kv_heads; ++head) {
    const std::int64_t base = head * rows.size();
    if (base >= end) return;
    bool open = false;
    std::int64_t index = std::max<std::int64_t>(0, begin - base);
    while (index < rows.size()) {
      const std::int64_t block = rows.row_at(index) / kDecodeBlock * kDecodeBlock;
      const std::int64_t first = base + rows.index_from(block);
      if (first >= end) break;
      if (first >= begin) {
        if (!open) open_head(task, head, query_scale, s);
        open = true;
        attend_one_block(task, head, {block, block + kDecodeBlock}, s, runs);
      }
      index = rows.index_from(block + kDecodeBlock);
    }
  }
}

struct MergedRow {
  float m = -std::numeric_limits<float>::infinity();
  float d = 0.0f;
  alignas(64) float o[kMaxHeadDim];  // nothing yet while d is 0
};

/// row <- merge(row, one thread's state).
void merge_part(const PartialStates& part, std::int64_t index, int head_dim_v,
                MergedRow& row) noexcept {
  if (part.d[index] == 0.0f) return;
  const float* o = part.o + index * part.o_stride;
  const float top = std::max(row.m, part.m[index]);
  const float add = std::exp2(part.m[index] - top);
  if (row.d == 0.0f) {
    for (int i = 0; i < head_dim_v; ++i) row.o[i] = o[i] * add;
    row.d = part.d[index] * add;
  } else {
    const float keep = std::exp2(row.m - top);
    for (int i = 0; i < head_dim_v; ++i) row.o[i] = row.o[i] * keep + o[i] * add;
    row.d = row.d * keep + part.d[index] * add;
  }
  row.m = top;
}

void merge_threads(const AttendTask& task, AttendWorkspace::Impl& workspace, int nth) noexcept {
  const int group = task.shape.group();
  const std::int64_t n_tokens = task.n_tokens();
  bool finite = true;
  for (std::int64_t index = 0; index < n_tokens * task.shape.n_heads; ++index) {
    const std::int64_t kv_head = index / (n_tokens * group);
    const std::int64_t token = index / group % n_tokens;
    const int head = static_cast<int>(kv_head * group + index % group);
    MergedRow row;
    for (int thread = 0; thread < nth; ++thread) {
      float* arena = workspace.threads[static_cast<std::size_t>(thread)].arena;
      merge_part(partial_states(task, arena), index, task.shape.head_dim_v, row);
    }
    finite = write_output(task, token, head, {row.o, row.m, row.d}) && finite;
  }
  if (!finite) workspace.not_finite.store(true, std::memory_order_release);
}

}  // namespace

void attend_decode(const AttendTask& task, AttendWorkspace::Impl& workspace, int ith,
                   int nth) noexcept {
  AttendWorkspace::Impl::Thread& thread = workspace.threads[static_cast<std::size_t>(ith)];
  const PartialStates states = partial_states(task, thread.arena);
  const std::int64_t n_rows = task.n_tokens() * task.shape.n_heads;
  std::fill_n(states.m, n_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(states.d, n_rows, 0.0f);  // o of an empty state is never read

  const std::int64_t total = UnionRows(task.visible).size() * task.shape.n_kv_heads;
  attend_share(task, total * ith / nth, total * (ith + 1) / nth, states, thread.runs.data());

  if (workspace.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != nth) return;
  workspace.arrived.store(
      0, std::memory_order_relaxed);  // the caller's barrier publishes it to the next task
  merge_threads(task, workspace, nth);
}

}  // namespace volvelle
