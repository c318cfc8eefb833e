// Second phase: coded scores of all rows, as weights relative to each tile's largest.
#include "index/topk_phases.hpp"
#include "kernels/dither.hpp"

namespace volvelle {
namespace {

/// What stands behind a row's error: the norm of its coding error, or its scale.
const std::uint16_t* error_radii(const TopkRead& read, const HeadTile& tile) noexcept {
  return read.policy.certificate == CertificateKind::kExact ? tile.key_norms : tile.key_scales;
}

/// Sinks are read exactly, so the first tile begins behind them.
int first_coded_row(const TopkRead& read, std::int64_t tile) noexcept {
  return static_cast<int>(
      std::clamp<std::int64_t>(read.policy.sinks - tile * kCodeTile, 0, kCodeTile));
}

void score_tile(const TopkRead& read, int kv_head, std::int64_t tile,
                const CodedQueries& queries) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const int group = read.group();
  const int first = kv_head * group;
  const HeadTile codes = read.index.head_tile(kv_head, tile);
  const std::int64_t capacity = w.capacity_tiles;
  const int begin = first_coded_row(read, tile);
  const CodeWidths& widths = read.index.code().keys[static_cast<std::size_t>(kv_head)].widths;
  for (int plane = 0; plane < read.n_planes(); ++plane) {
    KeyScan scan;
    scan.widths = widths;
    scan.n_queries = group;
    scan.q = queries.planes + plane * w.code_stride;
    scan.q_stride = kScanPlanes * w.code_stride;
    // Gains and offsets of the same plane lie kScanPlanes apart; the kernel wants them together.
    float gains[3 * kMaxScanQueries];
    float offsets[kMaxScanQueries];
    for (int from = 0; from < group; from += kMaxScanQueries) {
      const int n = std::min(kMaxScanQueries, group - from);
      for (int h = 0; h < n; ++h) {
        const int at = (from + h) * kScanPlanes + plane;
        for (int c = 0; c < 3; ++c) gains[3 * h + c] = queries.gains[at * 3 + c];
        offsets[h] = queries.offsets[at];
      }
      scan.n_queries = n;
      scan.gain = gains;
      scan.offset = offsets;
      float* out = plane == 0 ? w.weights_of(first + from) + tile * kCodeTile
                              : read.thread().raw + from * kCodeTile;
      scan_key_tile(scan, codes.key_levels, out, plane == 0 ? capacity * kCodeTile : kCodeTile);
      scan.q += n * scan.q_stride;
    }
  }
  float* const scores = w.weights_of(first) + tile * kCodeTile;
  if (read.n_planes() > 1) {
    for (int h = 0; h < group; ++h) {
      const float* fine = read.thread().raw + h * kCodeTile;
      float* s = scores + h * capacity * kCodeTile;
      for (int t = 0; t < kCodeTile; ++t) s[t] += fine[t];
    }
  }
  if (codes.key_salt != nullptr) {
    subtract_dither({.salt = *codes.key_salt,
                     .n_coordinates = widths.total(),
                     .n_queries = group,
                     .a = w.dithers + first * w.code_stride,
                     .stride = w.code_stride},
                    scores, capacity * kCodeTile);
  }
  TileWeights weights[kMaxGroup];
  weigh_key_tile({scores, capacity * kCodeTile, group}, codes.key_scales, begin,
                 static_cast<int>(kCodeTile), weights);
  for (int h = 0; h < group; ++h) {
    const float base = queries.bases == nullptr ? 0.0f : queries.bases[h];
    w.tile_m[(first + h) * capacity + tile] = weights[h].m + base;
    w.tile_d[(first + h) * capacity + tile] = weights[h].d;
  }
}

/// Sum of each row's weight times its share of the error, for all query heads of a tile.
void sum_errors(const TopkRead& read, int kv_head, std::int64_t tile) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const HeadTile codes = read.index.head_tile(kv_head, tile);
  for (int head = kv_head * read.group(); head < (kv_head + 1) * read.group(); ++head) {
    w.tile_error[head * w.capacity_tiles + tile] = error_sum(
        read, head, w.weights_of(head) + tile * kCodeTile, codes, first_coded_row(read, tile));
  }
}

}  // namespace

float error_sum(const TopkRead& read, int head, const float* weights, const HeadTile& tile,
                int begin) noexcept {
  const PreparedQuery& query = read.workspace.queries[static_cast<std::size_t>(head)];
  if (read.policy.certificate == CertificateKind::kExact) {
    // The slack of a score is its row's scale times query.slack; the scale is at most the largest.
    const float scale = largest_key_scale(tile);
    return sum_error_shares(ErrorShare::kBound, weights, error_radii(read, tile), query.norm,
                            query.slack * scale + query.shift, begin);
  }
  return sum_error_shares(ErrorShare::kExpected, weights, error_radii(read, tile), query.sigma,
                          0.0f, begin);
}

void score_pieces(const TopkRead& read) noexcept {
  const int n_kv_heads = read.shape().n_kv_heads;
  const Items items = share_of(read.n_pieces * n_kv_heads, read);
  for (std::int64_t item = items.begin; item < items.end; ++item) {
    const int kv_head = static_cast<int>(item / read.n_pieces);
    const std::int64_t piece = item % read.n_pieces;
    // Scales, norms and levels of keys lie side by side.
    const HeadTile any = read.index.head_tile(kv_head, 0);
    const std::size_t key_bytes =
        static_cast<std::size_t>(any.key_levels -
                                 reinterpret_cast<const std::byte*>(any.key_scales)) +
        read.index.code().keys[static_cast<std::size_t>(kv_head)].widths.tile_bytes();
    const TopkWorkspace::Impl& w = read.workspace;
    const int first = kv_head * read.group() * kScanPlanes;
    CodedQueries queries{w.planes + first * w.code_stride, w.gains + first * 3, w.offsets + first,
                         nullptr};
    std::int64_t block = -1;
    for (std::int64_t tile = read.first_tile(piece); tile < read.first_tile(piece + 1); ++tile) {
      if (read.anchored() && tile * kCodeTile / read.index.code().frame.block != block) {
        block = tile * kCodeTile / read.index.code().frame.block;
        queries = turn_queries(read, kv_head, tile);
      }
      if (tile + 1 < read.n_tiles) {
        const HeadTile next = read.index.head_tile(kv_head, tile + 1);
        prefetch_bytes(next.key_scales, key_bytes);
      }
      score_tile(read, kv_head, tile, queries);
      if (read.wants_bound() && read.policy.certificate != CertificateKind::kDithered)
        sum_errors(read, kv_head, tile);
    }
  }
}

}  // namespace volvelle
