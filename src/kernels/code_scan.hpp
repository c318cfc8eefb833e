// Scanning of coded rows, a tile of kCodeTile rows at a time: scores from key codes for all queries
// of a group, weighted sums from value codes.
//
// A coordinate is stored as a level l in [0, 2^b) and stands for scale_of_row * step_i * (l - c_b),
// c_b = 2^(b-1) - 1/2 (mid-rise). Levels are multiplied as unsigned bytes by signed bytes of the
// query (or of the weights), exactly, in integers. A coordinate of 8 bits is kept as two nibbles,
// so only nibbles and pairs of bits are ever unpacked.
//
// Tile of key codes. Coordinates in fours ("quads"); byte 4 t + c of a vector of 64 belongs to
// coordinate c of the quad and row t of sixteen:
//   8 bits  per quad 256 bytes: the high nibbles as below, then the low nibbles
//   4 bits  per quad 128 bytes: vector v holds rows 32 v + t in the low and 32 v + 16 + t in the
//           high nibbles
//   2 bits  per quad  64 bytes: bits 2 g of byte belong to row 16 g + t
// Tile of value codes. Coordinates in sixteens ("units"); byte 4 c + t of a vector belongs to
// coordinate c of the unit and row t of four:
//   8 bits  per unit 1024 bytes: the high nibbles as below, then the low nibbles
//   4 bits  per unit  512 bytes: vector w holds rows 8 w + t in the low, 8 w + 4 + t in the high
//           nibbles
//   2 bits  per unit  256 bytes: bits 2 g of vector w belong to row 16 w + 4 g + t
#pragma once

#include <cstddef>
#include <cstdint>

#include "volvelle/kernels/code_widths.hpp"

namespace volvelle {

/// Queries of one scan.
inline constexpr int kMaxScanQueries = 16;
/// Values that one of collect_at_least()'s largest values stands for.
inline constexpr std::int64_t kSelectBlock = 16;

/// Queries in the coordinates of the code, rounded to bytes, one gain for each width.
struct KeyScan {
  CodeWidths widths;
  int n_queries = 0;               // up to kMaxScanQueries
  const std::int8_t* q = nullptr;  // [n_queries, q_stride], from -127 to 127; order of the code
  std::ptrdiff_t q_stride = 0;
  const float* gain = nullptr;    // [n_queries, 3]: of the coordinates with 8, 4, 2 bits
  const float* offset = nullptr;  // [n_queries]: what the c_b add up to, with its sign
};

/// out[h * out_stride + t] = offset_h + sum of gain * q_i * level_ti over the coordinates: the
/// score of row t before its scale. Every product and sum of one width is exact; out has n_queries
/// rows.
void scan_key_tile(const KeyScan& scan, const std::byte* tile, float* out,
                   std::ptrdiff_t out_stride) noexcept;

/// Scores (or weights) of a tile for the queries of a group: row t of query h at s[h * stride + t].
struct TileScores {
  float* s = nullptr;
  std::ptrdiff_t stride = 0;
  int n_queries = 0;
};
/// Scores of a tile turned into weights, for one query.
struct TileWeights {
  float m = 0.0f;  // largest score of the rows in [begin, end), base 2
  float d = 0.0f;  // sum of the weights
};
/// s <- 2^(scale_t s - m) for t in [begin, end), 0 for the others; out[h] takes the sums. `scales`
/// are f16 bits. An empty range gives {-infinity, 0}; NaN or infinity in a score makes d NaN.
void weigh_key_tile(const TileScores& scores, const std::uint16_t* scales, int begin, int end,
                    TileWeights* out) noexcept;

/// out[i] = 2^(x[i] + shift) for n numbers that are then at most 0; -infinity gives 0.
void exp2_all(const float* x, std::int64_t n, float shift, float* out) noexcept;

/// Asks for the cache lines of [p, p + bytes), into L2: they are more than L1 can wait for.
inline void prefetch_bytes(const void* p, std::size_t bytes) noexcept {
  for (std::size_t line = 0; line < bytes; line += 64)
    __builtin_prefetch(static_cast<const char*>(p) + line, 0, 2);
}

/// out[t] = sum over queries of factor[h] * weight[h * stride + t]; maxima[b] = the largest of out
/// in rows [16 b, 16 b + 16).
void combine_tile_weights(const float* weight, std::ptrdiff_t stride, const float* factor,
                          int n_queries, float* out, float* maxima) noexcept;

/// Indices i of the values that are at least `least` and above zero, ascending, from those blocks
/// of kSelectBlock values whose largest in block_max reaches it. `out` has room for all values.
/// Returns how many there are.
std::int64_t collect_at_least(const float* values, const float* block_max, std::int64_t n_blocks,
                              float least, std::int32_t* out) noexcept;

/// How a row's weight turns into its share of an error: x is what is stored for the row times a
/// factor of the query, plus a constant.
enum class ErrorShare {
  kBound,     // x + x^2 e^x / 2, at least e^x - 1: the weight can be wrong by at most e^x
  kExpected,  // 0.4 x e^(1.5 x^2): half the expected change of a weight with error N(0, x^2)
};
/// sum over t >= begin of weight[t] * share(factor * halves[t] + constant), rounded to nearest. A
/// bound is infinite if any x is above 60, whatever the row's weight: 0 stands for up to 2^-126.
float sum_error_shares(ErrorShare share, const float* weight, const std::uint16_t* halves,
                       float factor, float constant, int begin) noexcept;

/// Weights of a tile as bytes: w[h][t] = round(weight[h * stride + t] * scale_t / gain), 0 to 127.
struct TileBytes {
  float gain = 0.0f;     // 0 if all weights are 0
  float weights = 0.0f;  // sum of the weights
  float bytes = 0.0f;    // sum of the bytes, exact
};
void quantize_tile_weights(const float* weight, std::ptrdiff_t stride, int n_queries,
                           const std::uint16_t* scales, std::int8_t* w, TileBytes* out) noexcept;

/// acc[h * acc_stride + i] += gain[h] * sum over t of w_ht (level_ti), for all coordinates of the
/// code; the integer sums are exact. `w` is [n_queries, kCodeTile].
struct ValueScan {
  CodeWidths widths;
  int n_queries = 0;
  const std::int8_t* w = nullptr;
  const float* gain = nullptr;  // [n_queries]
  float* acc = nullptr;         // [n_queries, acc_stride], aligned to 64 bytes
  std::ptrdiff_t acc_stride = 0;
};
void add_value_tile(const ValueScan& scan, const std::byte* tile) noexcept;

/// Packs levels into a tile. levels: [kCodeTile, n_coordinates] bytes, order of the code.
void pack_key_tile(const CodeWidths& widths, const std::uint8_t* levels, std::byte* tile) noexcept;
void pack_value_tile(const CodeWidths& widths, const std::uint8_t* levels,
                     std::byte* tile) noexcept;
/// The level of row t, coordinate i.
std::uint8_t key_level(const CodeWidths& widths, const std::byte* tile, int t, int i) noexcept;
std::uint8_t value_level(const CodeWidths& widths, const std::byte* tile, int t, int i) noexcept;

}  // namespace volvelle
