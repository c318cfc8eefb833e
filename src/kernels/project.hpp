// Small products of rows with a basis: coding of rows and turning codes back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace volvelle {

/// n rows times a basis that fits the cache.
struct Projection {
  const float* rows = nullptr;  // [n, dim], row_stride apart
  std::int64_t n = 0;
  std::int64_t row_stride = 0;
  const float* mean = nullptr;  // [dim], taken off each row
  int dim = 0;
  const float* basis = nullptr;  // [dim, basis_stride]; strides of basis and out: multiples of 16
  std::ptrdiff_t basis_stride = 0;
  int n_out = 0;
  float* out = nullptr;  // [n, out_stride]
  std::ptrdiff_t out_stride = 0;
};
/// out[r, j] = sum over i of (rows[r, i] - mean[i]) * basis[i, j] for j < n_out; lanes up to the
/// strides are written too.
void project_rows(const Projection& projection) noexcept;

/// out[j] += sum over i < n of x[i] * basis[i, j], j < dim.
void add_combination(const float* x, int n, const float* basis, std::ptrdiff_t basis_stride,
                     int dim, float* out) noexcept;

/// sum over i < dim of a[i] b[i].
float dot(const float* a, const float* b, int dim) noexcept;

/// How the coordinates of a row become levels; arrays of n_padded (a multiple of 16), zeros in `x`
/// and `inverse_step` and ones in `half` behind the last coordinate.
struct LevelRule {
  const float* inverse_step = nullptr;
  const float* half = nullptr;  // 2^(b_i - 1)
  int n_padded = 0;
};
/// levels[i] = clamp(floor(x_i * inverse_step_i * inverse_scale) + half_i, 0, 2 half_i - 1), of all
/// n_padded coordinates.
void quantize_levels(const LevelRule& rule, const float* x, float inverse_scale,
                     std::uint8_t* levels) noexcept;
/// max over i of |x_i| * inverse_step_i / half_i: the scale at which nothing clips.
float largest_ratio(const LevelRule& rule, const float* x) noexcept;

}  // namespace volvelle
