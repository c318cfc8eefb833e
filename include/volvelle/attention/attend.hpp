// Exact attention of a block of queries over stored rows.
//
// One task = one layer and the tokens of one sequence; a call takes one task or several of the same
// layer. All threads of a pool call attend() with the same tasks and workspace; the call returns
// when this thread's share is done, and the outputs are complete when every thread has returned.
// Nothing is allocated.
//
// Two ways of working, chosen by shape:
//   decode  (few query tokens): each KV head's rows are read once for all query heads of its group
//           and all tokens, the rows are split over the threads at multiples of kDecodeBlock rows,
//           and the parts are merged by the law of attention_state.hpp;
//   tiled   (many query tokens, or `deterministic`): query tiles x key tiles with online softmax.
//           Tile borders are multiples of kTileRows counted from row 0, states are closed and
//           merged at rows that depend on what a token sees alone, and each query row's arithmetic
//           does not depend on its neighbours. So the result is bit-equal for any chunking of the
//           queries, any segmentation of the rows, any number of threads and any other tasks of the
//           call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "volvelle/base/element_type.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

/// Shape of one layer's attention. Query head h reads KV head h * n_kv_heads / n_heads (GQA).
struct AttentionShape {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  ElementType k_type = ElementType::kF16;
  ElementType v_type = ElementType::kF16;
  float scale = 1.0f;     // s = scale * q.k
  float soft_cap = 0.0f;  // if > 0: s = soft_cap * tanh(s / soft_cap)
  int group() const noexcept { return n_heads / n_kv_heads; }
};

/// Checks a shape: positive sizes, n_heads a multiple of n_kv_heads, finite scale, dims up to
/// kMaxHeadDim.
Status validate(const AttentionShape& shape);
inline constexpr int kMaxHeadDim = 512;

/// Consecutive rows of one layer. Row r of KV head h starts at k + h * k_head_stride + (r -
/// first_row) * row_bytes(k_type, head_dim_k).
struct KeyValueSegment {
  std::int64_t first_row = 0;
  std::int64_t n_rows = 0;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::size_t k_head_stride = 0;  // bytes
  std::size_t v_head_stride = 0;
};

/// The rows that one query token sees: [0, sink_end) and [begin, end), with sink_end <= begin <=
/// end. Over the tokens of a task, sink_end, begin and end never decrease.
struct VisibleRows {
  std::int64_t sink_end = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct AttendTask {
  AttentionShape shape;
  std::span<const KeyValueSegment>
      segments;  // ascending, not overlapping; every visible row lies in one
  std::span<const VisibleRows> visible;  // [n_tokens]

  const float* q = nullptr;  // [n_tokens, n_heads, head_dim_k] with the strides below, in floats
  std::ptrdiff_t q_token_stride = 0;
  std::ptrdiff_t q_head_stride = 0;
  float* out =
      nullptr;  // [n_tokens, n_heads, head_dim_v]: normalised, or the state's o if `m` is set
  std::ptrdiff_t out_token_stride = 0;
  std::ptrdiff_t out_head_stride = 0;

  const float* sink_logits =
      nullptr;         // learned attention sinks [n_heads]: e^sink joins the denominator only
  float* m = nullptr;  // [n_tokens, n_heads]; if set, with d: write states instead of outputs
  float* d = nullptr;
  bool deterministic = false;  // always tiled: bit-equal for any chunking, threads, other tasks
  std::int64_t n_tokens() const noexcept { return static_cast<std::int64_t>(visible.size()); }
};

inline constexpr std::int64_t kDecodeBlock = 256;  // rows per softmax block of the decode kernel
inline constexpr std::int64_t kTileRows = 64;      // rows per key tile of the tiled kernel
inline constexpr std::int64_t kDecodeMaxQueries =
    20;  // n_tokens * group() up to this takes the decode path, and one token always does

/// Scratch and synchronisation of one pool of threads. Thread rule: one call at a time, all its
/// threads inside.
class AttendWorkspace {
 public:
  /// Sized for `max_threads` threads and any shape with up to these many heads and dims.
  static Result<AttendWorkspace> create(int max_threads, int max_heads, int max_head_dim_k,
                                        int max_head_dim_v);
  AttendWorkspace(AttendWorkspace&&) noexcept;
  AttendWorkspace& operator=(AttendWorkspace&&) noexcept;
  ~AttendWorkspace();

  std::size_t bytes() const noexcept;
  /// True if some output since the last call was not finite (NaN or infinity in q, K or V); clears
  /// the mark.
  bool take_not_finite() noexcept;

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit AttendWorkspace(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

inline constexpr int kMaxTasks = 32;  // per call

/// Thread `ith` of `nth` (0 <= ith < nth <= max_threads) does its share of the tasks of one layer,
/// usually one for each sequence of a batch; they may differ in everything but should be given at
/// once, because threads go from one to the next without waiting. The tasks' memory must stay valid
/// until all threads have returned, and the caller must join them (a barrier) before the next call
/// with the same workspace. More than kMaxTasks tasks, or one that the workspace is too small for:
/// nothing is written and take_not_finite() says so.
void attend(std::span<const AttendTask> tasks, AttendWorkspace& workspace, int ith,
            int nth) noexcept;
void attend(const AttendTask& task, AttendWorkspace& workspace, int ith, int nth) noexcept;

/// Convenience for tests, benches and single calls: runs attend() on `n_threads` own threads.
void attend(std::span<const AttendTask> tasks, AttendWorkspace& workspace, int n_threads);
void attend(const AttendTask& task, AttendWorkspace& workspace, int n_threads);

}  // namespace volvelle
