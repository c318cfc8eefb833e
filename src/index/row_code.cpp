// Allocation of bits, and coding of tiles.
#include "volvelle/index/row_code.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/result_macros.hpp"
#include "index/matrix.hpp"
#include "kernels/code_scan.hpp"
#include "kernels/dither.hpp"
#include "kernels/project.hpp"
#include "volvelle/base/half.hpp"

namespace volvelle {
namespace {

constexpr std::uint16_t kHalfNaN = 0x7E00;
constexpr std::uint16_t kHalfMax = 0x7BFF;

/// The smallest half float that is at least x (x >= 0); infinity beyond the largest.
std::uint16_t half_up(float x) {
  const std::uint16_t nearest = f32_to_f16(x);
  if (f16_to_f32(nearest) >= x) return nearest;
  return static_cast<std::uint16_t>(nearest + 1);
}

int rounded_down(double n, int unit) { return static_cast<int>(std::max(n, 0.0)) / unit * unit; }

/// What is left of a coordinate's range for each level; a dither takes one level as a guard.
double step_share(int width, Dither dither) {
  return 1.0 / (std::exp2(width) - (dither == Dither::kNone ? 0.0 : 1.0));
}

double error_of(std::span<const double> weight, const CodeWidths& widths, Dither dither) {
  double sum = 0.0;
  for (std::size_t i = 0; i < weight.size(); ++i)
    sum += weight[i] * step_share(widths.width_of(static_cast<int>(i)), dither);
  return sum;
}

}  // namespace

CodeWidths water_fill(std::span<const double> weight, double bits, int unit, Dither dither) {
  const int dim = static_cast<int>(weight.size());
  const int padded = (dim + unit - 1) / unit * unit;
  const double budget = bits * dim + 1e-9;
  CodeWidths best;
  double least = std::numeric_limits<double>::infinity();
  for (int n8 = 0; n8 <= padded && 8.0 * n8 <= budget; n8 += unit) {
    const double left8 = budget - 8.0 * n8;
    for (int n4 = 0; n8 + n4 <= padded && 4.0 * n4 <= left8; n4 += unit) {
      const int n2 = std::min(padded - n8 - n4, rounded_down((left8 - 4.0 * n4) / 2.0, unit));
      const CodeWidths widths{n8, n4, n2};
      if (dither != Dither::kNone && widths.total() < padded) continue;
      const double error = error_of(weight, widths, dither);
      if (error < least) {
        least = error;
        best = widths;
      }
    }
  }
  if (best.total() > 0) return best;
  best.n2 = dither == Dither::kNone ? unit : padded;  // something must tell rows apart
  return best;
}

CodeWidths uniform_widths(int rank, int bits, int unit) {
  const int n = (rank + unit - 1) / unit * unit;
  if (bits >= 8) return {n, 0, 0};
  if (bits >= 4) return {0, n, 0};
  return {0, 0, n};
}

namespace {

/// Fills a code from E [k, dim], D [dim, k] and gains [k]; coordinates beyond k are padding.
RowCode assemble(const MatrixD& encode, const MatrixD& decode, std::span<const double> gain,
                 std::span<const double> mean, const CodeWidths& widths, Dither dither) {
  RowCode code;
  code.dim = static_cast<int>(encode.cols());
  code.widths = widths;
  for (const double x : mean) code.mean.push_back(static_cast<float>(x));
  const Eigen::Index used = std::min<Eigen::Index>(widths.total(), encode.rows());
  const auto dim = static_cast<std::size_t>(code.dim);
  const auto stride = static_cast<std::size_t>(code.stride());
  code.encode.assign(dim * stride, 0.0f);
  code.decode.assign(static_cast<std::size_t>(widths.total()) * dim, 0.0f);
  code.step.assign(static_cast<std::size_t>(widths.total()), 1.0f);
  const double largest =
      std::max(1e-30, gain.empty() ? 1.0 : *std::max_element(gain.begin(), gain.end()));
  for (Eigen::Index i = 0; i < used; ++i) {
    const auto at = static_cast<std::size_t>(i);
    // A coordinate that never varies still needs a step above zero.
    const double g = std::max(gain[at], 1e-9 * largest);
    code.step[at] =
        static_cast<float>(g * step_share(widths.width_of(static_cast<int>(i)), dither));
    for (std::size_t j = 0; j < dim; ++j) {
      code.encode[j * stride + at] = static_cast<float>(encode(i, static_cast<Eigen::Index>(j)));
      code.decode[at * dim + j] = static_cast<float>(decode(static_cast<Eigen::Index>(j), i));
    }
  }
  return code;
}

}  // namespace

RowCode make_key_code(const ScoreCodec& codec, std::span<const double> mean,
                      const CodeWidths& widths, Dither dither) {
  const Eigen::Map<const MatrixD> encode(codec.encode.data(), codec.rank, codec.dim);
  const Eigen::Map<const MatrixD> decode(codec.decode.data(), codec.dim, codec.rank);
  return assemble(encode, decode, codec.spread, mean, widths, dither);
}

Result<RowCode> make_value_code(std::span<const double> covariance, std::span<const double> mean,
                                double bits) {
  const int dim = static_cast<int>(mean.size());
  // With Sq = I the balanced code is PCA; the plain eigenvectors keep it orthogonal.
  VOLVELLE_ASSIGN_OR_RETURN(const ScoreCodec codec,
                            make_score_codec(CodecKind::kPrincipal, covariance, covariance, dim));
  const Eigen::Map<const MatrixD> encode(codec.encode.data(), dim, dim);
  const Eigen::Map<const MatrixD> decode(codec.decode.data(), dim, dim);
  return assemble(encode, decode, codec.spread, mean,
                  water_fill(codec.lambda, bits, kValueCodeUnit), Dither::kNone);
}

namespace {

LevelRule prepare(const RowCode& code, CodeScratch& scratch) {
  const auto padded = static_cast<std::size_t>(code.stride());
  scratch.inverse_step.assign(padded, 0.0f);
  scratch.half.assign(padded, 1.0f);
  scratch.row_levels.resize(padded);
  scratch.levels.resize(static_cast<std::size_t>(code.widths.total() * kCodeTile));
  scratch.coordinates.assign(padded * static_cast<std::size_t>(kCodeTile), 0.0f);
  for (int i = 0; i < code.widths.total(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    scratch.half[at] = std::exp2f(static_cast<float>(code.widths.width_of(i) - 1));
    scratch.inverse_step[at] = 1.0f / code.step[at];
  }
  return {scratch.inverse_step.data(), scratch.half.data(), static_cast<int>(padded)};
}

/// The scale at which nothing clips, as it is stored; NaN for rows that have none. Smaller scales
/// have less error in a row by itself, but measured worse in outputs: what clips is off in the same
/// direction in many rows, and does not average out.
std::uint16_t whole_scale(const LevelRule& rule, const float* x) {
  const float whole = largest_ratio(rule, x);
  bool finite = std::isfinite(whole);
  for (int i = 0; finite && i < rule.n_padded; ++i) finite = std::isfinite(x[i]);
  const std::uint16_t scale = finite ? half_up(whole) : kHalfNaN;
  return scale > kHalfMax ? kHalfNaN : scale;  // too large a scale must not look like a code
}

/// The inverse of decode in double, [total, dim]: with it q.(row - mean) = (decode q).x exactly,
/// which the float matrix encode gives up to rounding only. Empty if coordinates are left out.
const std::vector<double>& exact_encode(const RowCode& code, CodeScratch& scratch) {
  std::vector<double>& inverse = scratch.exact_encode[&code];
  if (!inverse.empty() || code.widths.total() < code.dim) return inverse;
  const Eigen::Map<const MatrixF> decode(code.decode.data(), code.dim, code.dim);
  inverse = to_vector(MatrixD(decode.cast<double>().transpose().inverse()));
  return inverse;
}

/// Coordinates of a tile's rows in double, from the rows themselves: [kCodeTile, dim]. Empty if the
/// code leaves coordinates out.
std::span<const double> exact_coordinates(const RowCode& code, const float* rows,
                                          CodeScratch& scratch) {
  const std::vector<double>& encode = exact_encode(code, scratch);
  if (encode.empty()) return {};
  const Eigen::Map<const MatrixD> e(encode.data(), code.dim, code.dim);
  const Eigen::Map<const MatrixF> x(rows, kCodeTile, code.dim);
  const Eigen::Map<const Eigen::RowVectorXf> mean(code.mean.data(), code.dim);
  scratch.exact.resize(static_cast<std::size_t>(kCodeTile * code.dim));
  Eigen::Map<MatrixD> out(scratch.exact.data(), kCodeTile, code.dim);
  out.noalias() = (x.cast<double>().rowwise() - mean.cast<double>()) * e.transpose();
  return scratch.exact;
}

/// |x - coded x| of one row. Padding coordinates are zeros that no query sees.
double residual_norm(const RowCode& code, std::span<const double> x, const CodeScratch& scratch,
                     const std::uint8_t* levels, float scale) {
  if (x.empty()) return std::numeric_limits<double>::infinity();  // bounds nothing
  double sum = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double level = levels[i] - static_cast<double>(scratch.half[i]) + 0.5;
    const double rest =
        x[i] - static_cast<double>(scale) * static_cast<double>(code.step[i]) * level;
    sum += rest * rest;
  }
  return std::sqrt(sum);
}

/// Scale of a row coded with a dither: no coordinate comes nearer than half a level to the end of
/// its range. The last factor is for the rounding of the division.
std::uint16_t guarded_scale(const RowCode& code, std::span<const double> x,
                            const CodeScratch& scratch) {
  double largest = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double range =
        static_cast<double>(code.step[i]) * (static_cast<double>(scratch.half[i]) - 0.5);
    const double ratio = std::abs(x[i]) / range;
    if (!std::isfinite(ratio)) return kHalfNaN;
    largest = std::max(largest, ratio * (1.0 + 0x1p-20));
  }
  const std::uint16_t scale = half_up(static_cast<float>(largest * (1.0 + 0x1p-22)));
  return scale > kHalfMax ? kHalfNaN : scale;
}

/// A row of a tile with a dither.
struct DitheredRow {
  std::uint64_t salt;
  int t;
  float scale;
};

/// Levels of a row: floor(x / (scale step) + d). Padding coordinates too have a dither; queries do
/// not see them.
void dither_levels(const RowCode& code, std::span<const double> x, const CodeScratch& scratch,
                   const DitheredRow& row, std::uint8_t* levels) {
  for (int i = 0; i < code.widths.total(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double step = static_cast<double>(row.scale) * static_cast<double>(code.step[at]);
    const double y = at < x.size() && step > 0.0 ? x[at] / step : 0.0;
    const double d = (dither_number(row.salt, row.t, i) + 0.5) / kDitherPoints;
    const double half = static_cast<double>(scratch.half[at]);
    const double level = std::isfinite(y) ? std::floor(y + d) + half : half;
    levels[i] = static_cast<std::uint8_t>(std::clamp(level, 0.0, 2.0 * half - 1.0));
  }
}

}  // namespace

void encode_tile(const RowCode& code, CodeSide side, const float* rows, CodedRows out,
                 CodeScratch& scratch) {
  const LevelRule rule = prepare(code, scratch);
  const int n = code.widths.total();
  project_rows({.rows = rows,
                .n = kCodeTile,
                .row_stride = code.dim,
                .mean = code.mean.data(),
                .dim = code.dim,
                .basis = code.encode.data(),
                .basis_stride = code.stride(),
                .n_out = n,
                .out = scratch.coordinates.data(),
                .out_stride = code.stride()});
  const bool exact = out.norms != nullptr || out.salt != nullptr;
  const std::span<const double> all =
      exact ? exact_coordinates(code, rows, scratch) : std::span<const double>();
  for (std::int64_t t = 0; t < kCodeTile; ++t) {
    const float* x = scratch.coordinates.data() + t * code.stride();
    std::uint8_t* levels = scratch.levels.data() + t * n;
    const auto precise = all.empty() ? all
                                     : all.subspan(static_cast<std::size_t>(t * code.dim),
                                                   static_cast<std::size_t>(code.dim));
    if (out.salt != nullptr) {
      out.scales[t] = guarded_scale(code, precise, scratch);
      dither_levels(code, precise, scratch,
                    {*out.salt, static_cast<int>(t), f16_to_f32(out.scales[t])}, levels);
      continue;
    }
    out.scales[t] = whole_scale(rule, x);
    const float scale = f16_to_f32(out.scales[t]);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    quantize_levels(rule, x, std::isfinite(inverse) ? inverse : 0.0f, scratch.row_levels.data());
    std::copy_n(scratch.row_levels.data(), n, levels);
    if (out.norms == nullptr) continue;
    const double norm = residual_norm(code, precise, scratch, levels, scale);
    out.norms[t] = half_up(static_cast<float>(norm * (1.0 + 0x1p-20)));
  }
  if (side == CodeSide::kKeys) {
    pack_key_tile(code.widths, scratch.levels.data(), out.levels);
  } else {
    pack_value_tile(code.widths, scratch.levels.data(), out.levels);
  }
}

std::vector<float> decode_row(const RowCode& code, CodeSide side, const CodedRows& coded, int row) {
  const float scale = f16_to_f32(coded.scales[row]);
  std::vector<float> x;
  for (int i = 0; i < code.widths.total(); ++i) {
    const std::uint8_t level = side == CodeSide::kKeys
                                   ? key_level(code.widths, coded.levels, row, i)
                                   : value_level(code.widths, coded.levels, row, i);
    const float half = std::exp2f(static_cast<float>(code.widths.width_of(i) - 1));
    const float dither =
        coded.salt == nullptr
            ? 0.0f
            : static_cast<float>((dither_number(*coded.salt, row, i) + 0.5) / kDitherPoints);
    x.push_back(scale * code.step[static_cast<std::size_t>(i)] *
                (static_cast<float>(level) - half + 0.5f - dither));
  }
  return x;
}

}  // namespace volvelle
