// Exact reading of chosen rows with the decode kernel, and the driver of the phases.
#include <thread>

#include "attention/rows.hpp"
#include "index/topk_phases.hpp"
#include "kernels/attend_decode.hpp"

namespace volvelle {
namespace {

void attend_runs(const TopkRead& read, int head, std::int64_t n_runs,
                 const RowStates& states) noexcept {
  if (n_runs == 0) return;
  const AttentionShape& shape = read.shape();
  DecodeBlock block;
  block.runs = read.thread().runs.data();
  block.n_runs = static_cast<int>(n_runs);
  block.k_type = shape.k_type;
  block.v_type = shape.v_type;
  block.head_dim_k = shape.head_dim_k;
  block.head_dim_v = shape.head_dim_v;
  block.n_queries = read.group();
  block.q = read.workspace.scaled + head * read.group() * read.workspace.q_stride;
  block.q_stride = read.workspace.q_stride;
  block.m = states.m;
  block.d = states.d;
  block.o = states.o;
  block.o_stride = states.o_stride;
  attend_decode_block(block);
}

}  // namespace

void attend_rows(const TopkRead& read, int head, std::int64_t begin, std::int64_t end,
                 const RowStates& states) noexcept {
  KeyValueRun* const runs = read.thread().runs.data();
  for (std::int64_t first = begin; first < end; first += kRunsAtOnce) {
    const RowRange rows{first, std::min(first + kRunsAtOnce, end)};
    attend_runs(read, head, append_runs(read.task, head, rows, first, runs, 0), states);
  }
}

void attend_row_list(const TopkRead& read, int head, const std::int32_t* rows, std::int64_t n,
                     const RowStates& states) noexcept {
  const AttentionShape& shape = read.shape();
  const std::size_t k_row = row_bytes(shape.k_type, shape.head_dim_k);
  const std::size_t v_row = row_bytes(shape.v_type, shape.head_dim_v);
  const auto h = static_cast<std::size_t>(head);
  KeyValueRun* const runs = read.thread().runs.data();
  auto segment = read.task.segments.begin();
  std::int64_t n_runs = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    while (segment->first_row + segment->n_rows <= rows[i]) ++segment;
    const auto skip = static_cast<std::size_t>(rows[i] - segment->first_row);
    const std::byte* k = segment->k + h * segment->k_head_stride + skip * k_row;
    const std::byte* v = segment->v + h * segment->v_head_stride + skip * v_row;
    // The rows lie anywhere, so nothing else asks for them early.
    prefetch_bytes(k, k_row);
    prefetch_bytes(v, v_row);
    runs[n_runs++] = {k, v, 1, 0};
    if (n_runs < kRunsAtOnce && i + 1 < n) continue;
    attend_runs(read, head, n_runs, states);
    n_runs = 0;
  }
}

bool can_read_topk(const AttendTask& task, const CodeIndex& index,
                   const TopkPolicy& policy) noexcept {
  if (!index.ready() || task.shape.soft_cap > 0.0f || task.shape.group() > kMaxGroup ||
      index.code().n_kv_heads() != task.shape.n_kv_heads) {
    return false;
  }
  if (policy.coded_tail && index.code().values.empty()) return false;
  const LayerCode& code = index.code();
  if (policy.certificate == CertificateKind::kExact && !(code.norms && code.codes_all()))
    return false;
  if (code.frame.block > 0 && policy.certificate != CertificateKind::kNone) return false;
  // Dithered codes mean nothing without their dither, and the bound speaks of coded tails only.
  if ((policy.certificate == CertificateKind::kDithered) != (code.dither != Dither::kNone) ||
      (code.dither != Dither::kNone && !(code.codes_all() && policy.coded_tail)))
    return false;
  for (const VisibleRows& visible : task.visible) {
    if (visible.begin != visible.sink_end || visible.end < policy.window + kCodeTile) return false;
  }
  return index.n_tiles() > 0;
}

void topk_attend(const AttendTask& task, const CodeIndex& index, const TopkPolicy& policy,
                 TopkWorkspace& workspace, int ith, int nth) noexcept {
  TopkWorkspace::Impl& impl = workspace.impl();
  for (std::int64_t token = 0; token < task.n_tokens(); ++token) {
    TopkRead read{task, token, index, policy, impl, ith, nth};
    const std::int64_t coded = (read.n_visible() - policy.window) / kCodeTile;
    read.n_tiles = std::min({coded, index.n_tiles(), impl.capacity_tiles});
    read.n_pieces = std::clamp<std::int64_t>(read.n_tiles / kMinPieceTiles, 1, kMaxPieces);
    prepare_queries(read);
    impl.meeting.wait(nth);
    score_pieces(read);
    impl.meeting.wait(nth);
    choose_rows(read);
    impl.meeting.wait(nth);
    read_pieces(read);
    impl.meeting.wait(nth);
    write_outputs(read);
    impl.meeting.wait(nth);  // the next read uses the same places
  }
}

void topk_attend(const AttendTask& task, const CodeIndex& index, const TopkPolicy& policy,
                 TopkWorkspace& workspace, int n_threads) {
  std::vector<std::jthread> others;
  for (int i = 1; i < n_threads; ++i) {
    others.emplace_back([&, i] { topk_attend(task, index, policy, workspace, i, n_threads); });
  }
  topk_attend(task, index, policy, workspace, 0, n_threads);
}

}  // namespace volvelle
