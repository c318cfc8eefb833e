// One number of the dither, and run-time dispatch of the rest.
#include "kernels/dither.hpp"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dither.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/dither-inl.h"
// clang-format on

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(subtract_all);
HWY_EXPORT(product_sums);

int dither_number(std::uint64_t salt, int t, int i) noexcept {
  std::uint32_t x = static_cast<std::uint32_t>(i / 2 * kCodeTile + t);
  x = x * kDitherFactor0 + static_cast<std::uint32_t>(salt);
  x = (x ^ x >> 16) * kDitherFactor1;
  x ^= static_cast<std::uint32_t>(salt >> 32);
  x = (x ^ x >> 13) * kDitherFactor2;
  x ^= x >> 16;
  return static_cast<std::int16_t>(i % 2 == 0 ? x & 0xFFFFU : x >> 16);
}

void subtract_dither(const DitherScan& scan, float* out, std::ptrdiff_t out_stride) noexcept {
  HWY_DYNAMIC_DISPATCH(subtract_all)(scan, out, out_stride);
}
ProductSums sum_products(const float* weight, const std::uint16_t* halves) noexcept {
  return HWY_DYNAMIC_DISPATCH(product_sums)(weight, halves);
}

}  // namespace volvelle
#endif  // HWY_ONCE
