// Subtractive dither of coded keys: numbers that look random, uniform on (-1/2, 1/2), one for each
// row and coordinate of a tile, made again from a salt wherever they are needed.
//
// d = (n + 1/2) / 2^16 with n a signed 16-bit half of a keyed 32-bit hash of (row, pair of
// coordinates), so a dither is on a lattice of 2^16 points; the tiny difference to a continuous one
// belongs to the slack of bounds. The hash is no cipher: who knows a tile's codes and keys could
// find its salt.
#pragma once

#include <cstddef>
#include <cstdint>

#include "volvelle/kernels/code_widths.hpp"

namespace volvelle {

inline constexpr double kDitherPoints = 0x1p16;
// Odd factors of multiplicative hashing: the golden ratio, and two of a well-known finaliser.
inline constexpr std::uint32_t kDitherFactor0 = 0x9E3779B1U;
inline constexpr std::uint32_t kDitherFactor1 = 0x85EBCA6BU;
inline constexpr std::uint32_t kDitherFactor2 = 0xC2B2AE35U;

/// n of row t (below kCodeTile) and coordinate i: d = (n + 1/2) / kDitherPoints.
int dither_number(std::uint64_t salt, int t, int i) noexcept;

/// Takes the dither out of scores: out[h * out_stride + t] -= sum over i of a[h * stride + i] *
/// n_ti. One float product and addition each, in the order of i.
struct DitherScan {
  std::uint64_t salt = 0;
  int n_coordinates = 0;  // even
  int n_queries = 0;
  const float* a = nullptr;
  std::ptrdiff_t stride = 0;
};
void subtract_dither(const DitherScan& scan, float* out, std::ptrdiff_t out_stride) noexcept;

/// Sums over the rows of a tile; `halves` holds what the weights are multiplied with.
struct ProductSums {
  float sum_w = 0.0f;
  float sum_wt = 0.0f;
  float sum_wt_squared = 0.0f;
  float max_w = 0.0f;
  float max_wt = 0.0f;
};
ProductSums sum_products(const float* weight, const std::uint16_t* halves) noexcept;

}  // namespace volvelle
