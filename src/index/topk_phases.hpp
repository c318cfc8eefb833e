// The phases of a read through an index. Every thread calls each of them; threads meet in between.
#pragma once

#include <algorithm>

#include "index/topk_workspace.hpp"
#include "volvelle/base/half.hpp"

namespace volvelle {

/// One query token's read, as all phases see it.
struct TopkRead {
  const AttendTask& task;
  std::int64_t token = 0;
  const CodeIndex& index;
  const TopkPolicy& policy;
  TopkWorkspace::Impl& workspace;
  int ith = 0;
  int nth = 1;
  std::int64_t n_tiles = 0;   // coded rows are those of tiles [0, n_tiles) behind the sinks
  std::int64_t n_pieces = 0;  // the tiles are cut into so many parts

  const AttentionShape& shape() const noexcept { return task.shape; }
  int group() const noexcept { return task.shape.group(); }
  std::int64_t n_visible() const noexcept {
    return task.visible[static_cast<std::size_t>(token)].end;
  }
  std::int64_t n_coded_rows() const noexcept { return n_tiles * kCodeTile; }
  std::int64_t first_tile(std::int64_t piece) const noexcept { return n_tiles * piece / n_pieces; }
  TopkWorkspace::Impl::Thread& thread() const noexcept {
    return workspace.threads[static_cast<std::size_t>(ith)];
  }
  /// Whether queries are turned for each block of rows.
  bool anchored() const noexcept { return index.code().frame.block > 0; }
  bool wants_bound() const noexcept {
    return policy.max_error > 0.0 || policy.certificate != CertificateKind::kNone;
  }
  /// Planes of bytes per query: bounds need the queries to be nearly exact.
  int n_planes() const noexcept {
    return policy.certificate == CertificateKind::kNone ? 1 : kScanPlanes;
  }
};

/// This thread's share of the items [0, n).
struct Items {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
inline Items share_of(std::int64_t n, const TopkRead& read) noexcept {
  return {n * read.ith / read.nth, n * (read.ith + 1) / read.nth};
}

/// Queries of a group as the scan wants them; query h, plane p at [h * kScanPlanes + p].
struct CodedQueries {
  const std::int8_t* planes = nullptr;  // stride TopkWorkspace::Impl::code_stride
  const float* gains = nullptr;         // three each
  const float* offsets = nullptr;
  const float* bases = nullptr;  // [group], or nothing: added to scores of the tile
};
/// The queries of a KV head turned for the block of a tile, in the thread's scratch.
CodedQueries turn_queries(const TopkRead& read, int kv_head, std::int64_t tile) noexcept;

void prepare_queries(const TopkRead& read) noexcept;  // and read sinks and recent rows exactly
void score_pieces(const TopkRead& read) noexcept;
void choose_rows(const TopkRead& read) noexcept;
void read_pieces(const TopkRead& read) noexcept;
void write_outputs(const TopkRead& read) noexcept;

/// The largest scale of a tile's coded keys.
inline float largest_key_scale(const HeadTile& tile) noexcept {
  float scale = 0.0f;
  for (int t = 0; t < kCodeTile; ++t) scale = std::max(scale, f16_to_f32(tile.key_scales[t]));
  return scale;
}

/// Sum over a tile of weight times share of the error, for one query head; see ErrorShare.
float error_sum(const TopkRead& read, int head, const float* weights, const HeadTile& tile,
                int begin) noexcept;

/// Query heads of a KV head that a read through an index serves.
inline constexpr int kMaxGroup = 64;

/// Adds rows [begin, end) of a KV head to the states of its group, exactly.
void attend_rows(const TopkRead& read, int head, std::int64_t begin, std::int64_t end,
                 const RowStates& states) noexcept;
/// The same for single rows, ascending.
void attend_row_list(const TopkRead& read, int head, const std::int32_t* rows, std::int64_t n,
                     const RowStates& states) noexcept;

}  // namespace volvelle
