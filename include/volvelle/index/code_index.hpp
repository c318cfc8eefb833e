// The index of one layer: how its rows are coded, and the codes of its first tiles of rows.
//
// Tile i holds the codes of rows [64 i, 64 i + 64) of all KV heads. A tile is written once and
// never changes, so clones share tiles, and a saved index is used where it lies in its file. Rows
// behind the last tile have no code; reads take them exactly. Thread rule: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "volvelle/attention/attend.hpp"
#include "volvelle/base/result.hpp"
#include "volvelle/index/row_code.hpp"
#include "volvelle/rope/rope_config.hpp"

namespace volvelle {

/// Positions turned back to the middle of blocks (SAKI, block-anchored codes): keys of a block are
/// coded as if they stood in its middle, and a query is turned for each block, so codes need not
/// know what rotation does to keys over all positions. Any rotation is exact; this one is good.
struct BlockFrame {
  static constexpr std::int64_t kPositions = 256;  // the size that files know
  std::int64_t block = 0;     // positions of a block, a multiple of kCodeTile; 0: no frame
  bool half_split = false;    // pairs (i, i + n / 2), else (2 i, 2 i + 1)
  std::vector<float> angles;  // [n_pairs], per position
  std::int64_t middle(std::int64_t position) const noexcept {
    return position / block * block + block / 2;
  }
  /// Turns a row back by `position`.
  void turn_back(std::int64_t position, float* row) const noexcept;
  bool operator==(const BlockFrame&) const = default;
};
/// Blocks of 256 positions for a model's rotation; fails by name where it is not a plain one.
Result<BlockFrame> make_block_frame(const RopeConfig& rope);

/// How the rows of every KV head of a layer are coded. Immutable; shared by clones.
struct LayerCode {
  std::vector<RowCode> keys;      // [n_kv_heads]
  std::vector<RowCode> values;    // [n_kv_heads], or none: only scores are coded
  bool norms = false;             // tiles hold the norm of each key's coding error
  Dither dither = Dither::kNone;  // of keys; tiles hold a salt for each KV head
  BlockFrame frame{};
  std::int64_t n_rows = 0;  // rows that the code was made from
  int n_kv_heads() const noexcept { return static_cast<int>(keys.size()); }
  /// Whether all coordinates are coded: nothing bounds the error of a score otherwise.
  bool codes_all() const noexcept;
  /// Bytes of the codes of one tile, all KV heads; a multiple of 64.
  std::size_t tile_bytes() const noexcept;
  /// Bytes of KV head `head` in it, and where they begin.
  std::size_t head_bytes(int head) const noexcept;
  std::size_t head_offset(int head) const noexcept;
  /// Bytes of codes per row and KV head, on average.
  double bytes_per_row() const noexcept;
};

/// Where the parts of a KV head's codes lie in a tile.
struct HeadTile {
  const std::uint16_t* key_scales = nullptr;  // [kCodeTile] half floats
  const std::uint16_t* key_norms = nullptr;   // [kCodeTile] half floats, or nothing
  const std::uint64_t* key_salt = nullptr;    // of the dither, or nothing
  const std::byte* key_levels = nullptr;
  const std::uint16_t* value_scales = nullptr;
  const std::byte* value_levels = nullptr;
};

class CodeIndex {
 public:
  CodeIndex() = default;
  explicit CodeIndex(std::shared_ptr<const LayerCode> code);

  bool ready() const noexcept { return code_ != nullptr; }
  const LayerCode& code() const noexcept { return *code_; }
  const std::shared_ptr<const LayerCode>& shared_code() const noexcept { return code_; }
  std::int64_t n_tiles() const noexcept { return static_cast<std::int64_t>(tiles_.size()); }
  const std::byte* tile(std::int64_t i) const noexcept {
    return tiles_[static_cast<std::size_t>(i)].get();
  }
  HeadTile head_tile(int head, std::int64_t i) const noexcept;

  /// Memory for the next tiles, so that many of them lie side by side: `n_tiles` times
  /// code().tile_bytes(), 64-byte aligned, zeros. Clones do not inherit it.
  void provide(std::shared_ptr<std::byte> memory, std::int64_t n_tiles) noexcept {
    provided_ = {std::move(memory), n_tiles};
  }
  /// Codes the rows of tile n_tiles() and appends them. Every row must lie in `segments`.
  Status append_tile(const AttentionShape& shape, std::span<const KeyValueSegment> segments,
                     CodeScratch& scratch);
  /// Appends a tile that is stored elsewhere; `tile` keeps it alive.
  void adopt_tile(std::shared_ptr<const std::byte> tile);
  void truncate(std::int64_t n_tiles) noexcept;
  std::size_t code_bytes() const noexcept;

  /// With a block frame: cosines, then sines, of the middle of tile i's block, [2 n_pairs]; and the
  /// map of a key code's queries, D [dim, stride of the code].
  const float* rotation(std::int64_t tile) const noexcept {
    return rotations_.data() + tile * kCodeTile / code_->frame.block * 2 *
                                   static_cast<std::int64_t>(code_->frame.angles.size());
  }
  const float* query_map(int head) const noexcept {
    return query_maps_[static_cast<std::size_t>(head)].data();
  }

 private:
  void add_rotation();
  /// Room for tiles that nobody has written yet. Only one index may write it, so copies are empty.
  struct Provided {
    std::shared_ptr<std::byte> memory;
    std::int64_t n_tiles = 0;
    Provided() = default;
    Provided(std::shared_ptr<std::byte> m, std::int64_t n) : memory(std::move(m)), n_tiles(n) {}
    Provided(const Provided&) {}
    Provided(Provided&&) = default;
    Provided& operator=(const Provided&) { return *this = Provided(); }
    Provided& operator=(Provided&&) = default;
  };
  std::shared_ptr<std::byte> next_tile();

  std::shared_ptr<const LayerCode> code_;
  Provided provided_;
  std::vector<std::size_t> offsets_;  // [n_kv_heads] of the heads in a tile
  std::vector<std::shared_ptr<const std::byte>> tiles_;
  std::vector<float> rotations_;                // [n_blocks, 2 n_pairs]
  std::vector<std::vector<float>> query_maps_;  // [n_kv_heads]
};

/// What a code is made of.
struct IndexOptions {
  CodecKind kind = CodecKind::kBalanced;
  double bits = 3.0;        // of each key coordinate on average; ignored with rank
  int rank = 0;             // 0: all coordinates, water-filled; else the first `rank` with 8 bits
  double value_bits = 3.0;  // 0: values are not coded
  bool norms = false;
  Dither dither = Dither::kNone;  // of keys; needs 2 bits or more, and no rank
  BlockFrame frame{};             // of keys; no norms and no dither with it
  bool normalise_queries = true;
  bool shrink = true;
  std::int64_t sinks = 4;        // rows left out of the moments
  std::int64_t max_rows = 4096;  // rows that the moments are made of, evenly spread
  bool operator==(const IndexOptions&) const = default;
};

/// Queries of one layer at late positions: [n_tokens, n_heads, head_dim].
struct QuerySample {
  const float* q = nullptr;
  std::int64_t n_tokens = 0;
  const std::int64_t* positions = nullptr;  // [n_tokens]; only a block frame needs them
};

/// What calibration saw of one KV head; for reports.
struct HeadDiagnostics {
  double predicted_error = 0.0;  // relative score error of the first 32 coordinates
  double principal_error = 0.0;  // the same for PCA
  double inflation_keys = 1.0;   // tau2
  double inflation_queries = 1.0;
  double shrinkage_keys = 0.0;  // alpha
  double shrinkage_queries = 0.0;
  int key_spikes = 0;  // correlation eigenvalues above the noise edge
};

/// [n_layers][n_kv_heads]; nothing for layers without an index.
using IndexDiagnostics = std::vector<std::vector<HeadDiagnostics>>;

/// Makes the code of a layer from its stored rows [0, n_rows) and a sample of queries. The rows
/// must spread over all positions that will be searched: a code made of early positions alone finds
/// little later (recall fell from .80 to .48 in our measurements). Cost: O((n_rows + n_queries)
/// dim^2 + dim^3) per KV head.
Result<LayerCode> make_layer_code(const AttentionShape& shape,
                                  std::span<const KeyValueSegment> segments, std::int64_t n_rows,
                                  const QuerySample& queries, const IndexOptions& options,
                                  std::vector<HeadDiagnostics>* diagnostics = nullptr);

}  // namespace volvelle
