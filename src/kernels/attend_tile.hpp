// Tiled kernel: a group of query rows of one KV head over one tile of keys, with online softmax.
//
// Query rows are the lanes of vectors: a group is 1 to 3 vectors of rows, its queries are stored
// transposed, so scores of one key for all rows are vectors, the softmax runs down the keys without
// any horizontal step, and keys need no transpose. Every row's arithmetic is its own lane's, in
// ascending key order, so nothing depends on the other rows of the group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runs.hpp"
#include "volvelle/base/element_type.hpp"

namespace volvelle {

inline constexpr std::int64_t kTileKeys = 64;     // keys per tile
inline constexpr std::int64_t kGroupVectors = 3;  // vectors of query rows per group
inline constexpr std::int64_t kMaxGroupRows = kGroupVectors * kLanePad;

/// Query rows per vector of the instruction set in use (a group has 1 to kGroupVectors vectors of
/// rows).
std::int64_t tile_lanes() noexcept;

/// Queries of one group, to be stored transposed.
struct QueryGroup {
  const float* const* source = nullptr;  // [n_rows] pointers to rows of `dim` floats
  std::int64_t n_rows = 0;
  std::int64_t dim = 0;
  float scale = 1.0f;
  std::int64_t stride = 0;  // rows of the group; those from n_rows on become zeros
  float* q = nullptr;       // [dim, stride]
};
void pack_queries(const QueryGroup& group) noexcept;

/// Keys and values of one tile as floats. Rows without a run are zeros.
struct TilePanels {
  float* k = nullptr;  // [kTileKeys, pad_lanes(head_dim_k)]
  float* v = nullptr;  // kTileKeys * pad_lanes(head_dim_v) floats in the kernel's own order
  int head_dim_k = 0;
  int head_dim_v = 0;
  ElementType k_type = ElementType::kF16;
  ElementType v_type = ElementType::kF16;
};

/// Fills the panels from runs in ascending order of their offset in the tile.
void pack_tile(const KeyValueRun* runs, std::int64_t n_runs, const TilePanels& panels) noexcept;

struct TileGroup {
  const TilePanels* panels = nullptr;
  std::int64_t n_vectors = 0;  // 1..kGroupVectors; rows = n_vectors * tile_lanes()
  const float* q = nullptr;    // [head_dim_k, rows], scaled, aligned
  float cap_log2 = 0.0f;       // soft cap * log2 e, or 0
  std::int64_t begin = 0;  // keys [begin, end) of the tile that some row sees; the rest is skipped
  std::int64_t end = 0;

  // Row r sees keys [0, sink_end[r]) and [first[r], last[r]) of the tile; null: all rows see the
  // whole tile.
  const float* sink_end = nullptr;
  const float* first = nullptr;
  const float* last = nullptr;

  float* weights = nullptr;  // scratch [kTileKeys, rows]
  float* m = nullptr;        // [rows], base 2
  float* d = nullptr;        // [rows]
  float* o = nullptr;        // [rows, pad_lanes(head_dim_v)]
};

/// Merges the tile into the states of the group. Invisible keys have weight exactly 0.
void attend_tile_group(const TileGroup& group) noexcept;

}  // namespace volvelle
