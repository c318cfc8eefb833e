// Small products of rows with a basis: coding of rows and turning codes back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace volvelle {

/// out[r, j] = sum over i of (rows[r, i] - mean[i]) * basis[i, j], j < n_out, for n rows. `basis` is
/// [dim, basis_stride], basis_stride and out_stride multiples of 16; lanes up to them are written.
void project_rows(const float* rows, std::int64_t n, std::int64_t row_stride, const float* mean,
                  int dim, const float* basis, int n_out, std::ptrdiff_t basis_stride, float* out,
                  std::ptrdiff_t out_stride) noexcept;

/// out[j] += sum over i < n of x[i] * basis[i, j], j < dim.
void add_combination(const float* x, int n, const float* basis, std::ptrdiff_t basis_stride,
                     int dim, float* out) noexcept;

/// sum over i < dim of a[i] b[i].
float dot(const float* a, const float* b, int dim) noexcept;

/// Levels of one row: level_i = clamp(floor(x_i * inverse_step_i * inverse_scale) + half_i, 0, 2
/// half_i - 1).
void quantize_levels(const float* x, const float* inverse_step, const float* half,
                     float inverse_scale, int n, std::uint8_t* levels) noexcept;
/// max over i of |x_i| * bound_i.
float largest_ratio(const float* x, const float* bound, int n) noexcept;

}  // namespace volvelle
