// Coding of rows: a linear map to coordinates, and few bits for each of them.
//
//   x = E (row - mean),  x_i ~ scale * step_i * (level_i - c_i),  c_i = 2^(b_i - 1) - 1/2
//
// One scale for each row, a half float rounded up so that nothing clips; step_i = gain_i 2^-b_i
// (with dither gain_i / (2^b_i - 1), as a level guards against clipping). The widths b_i are
// water-filled: among {8, 4, 2, 0} those that minimise the sum of gain weights 2^-b_i within the
// bits there are. Keeping all coordinates with few bits beats a few coordinates with many (measured
// on real models; docs/benchmarks.md). Thread rule: a RowCode is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "volvelle/base/result.hpp"
#include "volvelle/index/score_codec.hpp"
#include "volvelle/kernels/code_widths.hpp"

namespace volvelle {

/// Whether coded rows hold a dither: x_i = scale * step_i * (level_i - c_i - d_i), d from the
/// tile's salt, one guard level, so that errors are uniform and independent of the row.
enum class Dither { kNone, kSubtractive };

struct RowCode {
  int dim = 0;
  CodeWidths widths;
  std::vector<float> mean;    // [dim]
  std::vector<float> encode;  // E transposed [dim, stride()], zeros behind total()
  std::vector<float> decode;  // [total(), dim]: row - mean ~ sum x_i decode_i
  std::vector<float> step;    // [total()]
  std::ptrdiff_t stride() const noexcept { return (widths.total() + 15) / 16 * 16; }
  bool operator==(const RowCode&) const = default;
};

/// Widths for coordinates of descending `weight` (the share of a coordinate's error is weight 2^-b)
/// with at most `bits` for each of `weight`'s coordinates on average. Counts are multiples of
/// `unit`; coordinates beyond the last are padding and weigh nothing.
/// Dithered codes need all coordinates, so each has 2 bits at least (and `bits` at least 2).
CodeWidths water_fill(std::span<const double> weight, double bits, int unit,
                      Dither dither = Dither::kNone);
/// The first `rank` coordinates with 8 bits.
CodeWidths uniform_widths(int rank, int bits, int unit);

/// Keys: the coordinates of a score codec (rank = dim unless the widths keep fewer), gain
/// sqrt(lambda).
RowCode make_key_code(const ScoreCodec& codec, std::span<const double> mean,
                      const CodeWidths& widths, Dither dither = Dither::kNone);
/// Values: principal components of `covariance`, gain sqrt(eigenvalue), `bits` each on average.
Result<RowCode> make_value_code(std::span<const double> covariance, std::span<const double> mean,
                                double bits);

/// Coded rows of one tile: where the parts lie is the index's business.
struct CodedRows {
  std::byte* levels = nullptr;          // [widths.tile_bytes()]
  std::uint16_t* scales = nullptr;      // [kCodeTile] half floats
  std::uint16_t* norms = nullptr;       // [kCodeTile] half floats, rounded up, or nothing
  const std::uint64_t* salt = nullptr;  // of the dither, or nothing
};

/// Scratch of one coding thread.
struct CodeScratch {
  std::vector<float> rows;
  std::vector<float> coordinates;
  std::vector<float> inverse_step;
  std::vector<float> half;
  std::vector<std::uint8_t> row_levels;
  std::vector<std::uint8_t> levels;
  std::map<const RowCode*, std::vector<double>> exact_encode;  // of codes with norms or dither
  std::vector<double> exact;                                   // coordinates of a tile's rows
  std::optional<std::mt19937_64> salts;  // for tests; else the system's entropy
};

enum class CodeSide { kKeys, kValues };

/// Codes kCodeTile rows [kCodeTile, dim]. norms: |x - coded x| of each row, an upper bound. A row
/// with NaN or infinity gets a NaN scale, which shows in every read of it.
void encode_tile(const RowCode& code, CodeSide side, const float* rows, CodedRows out,
                 CodeScratch& scratch);
/// The coordinates that a coded row stands for, [total()]; for tests and measurements.
std::vector<float> decode_row(const RowCode& code, CodeSide side, const CodedRows& coded, int row);

}  // namespace volvelle
