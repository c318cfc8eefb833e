// f32 -> f16 and back for whole rows, compiled once per target. 2 bytes of traffic per element,
// bound by memory.
//
// Targets with F16C use it (nearest even); the others use the scalar integer algorithm, because
// Highway's emulation truncates and a stored row must not depend on the processor.
#if defined(VOLVELLE_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_CONVERT_INL_H_
#undef VOLVELLE_KERNELS_CONVERT_INL_H_
#else
#define VOLVELLE_KERNELS_CONVERT_INL_H_
#endif

#include "kernels/load-inl.h"
#include "volvelle/base/half.hpp"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

inline void row_to_half(const float* HWY_RESTRICT src, std::uint16_t* HWY_RESTRICT dst,
                        std::int64_t n) {
  std::int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const FloatTag d;
  const hn::Rebind<std::uint16_t, FloatTag> bits;
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(half, hn::LoadU(d, src + i))), bits, dst + i);
  }
#endif
  for (; i < n; ++i) dst[i] = f32_to_f16(src[i]);
}

inline void half_to_row(const std::uint16_t* HWY_RESTRICT src, float* HWY_RESTRICT dst,
                        std::int64_t n) {
  const FloatTag d;
  const auto* halves = reinterpret_cast<const hwy::float16_t*>(src);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_floats(d, halves + i), d, dst + i);
  for (; i < n; ++i) dst[i] = f16_to_f32(src[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_CONVERT_INL_H_
