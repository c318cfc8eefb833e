// What the third phase knows about one KV head while it looks for the rows to read exactly.
#pragma once

#include "index/topk_phases.hpp"

namespace volvelle {

/// Sums of one query head over all coded rows, relative to its largest score of any kind.
struct HeadSums {
  double top = 0.0;    // largest score, base 2, absolute
  double exact = 0.0;  // weights of the rows that are always exact
  double coded = 0.0;  // weights of all coded rows
  double error = 0.0;  // weights times shares of the error
};

struct Choice {
  const TopkRead& read;
  int kv_head;
  HeadSums sums[kMaxGroup];

  int first_head() const noexcept { return kv_head * read.group(); }
  /// Chosen rows, ascending.
  std::int32_t* rows() const noexcept {
    const TopkWorkspace::Impl& w = read.workspace;
    return w.selected + kv_head * w.capacity_tiles * kCodeTile;
  }
  double tile_factor(int g, std::int64_t tile) const noexcept {
    const TopkWorkspace::Impl& w = read.workspace;
    return static_cast<double>(w.tile_m[(first_head() + g) * w.capacity_tiles + tile]);
  }
};

/// The largest bound over the heads of the group if the n chosen rows are read exactly, from
/// dithered codes. Cost: as scoring all rows once more, and n exact scores.
double worst_dithered_error(const Choice& choice, std::int64_t n) noexcept;

}  // namespace volvelle
