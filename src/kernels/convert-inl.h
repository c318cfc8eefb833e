// Floats to 16-bit elements for whole rows, and all types back, compiled once per target. Bound by
// memory.
//
// Targets with F16C use it (nearest even); the others use the scalar integer algorithm, because
// Highway's emulation truncates and a stored row must not depend on the processor. bf16 is integer
// arithmetic everywhere, which the compiler vectorises. Block types are in quantize.cpp.
#if defined(VOLVELLE_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_CONVERT_INL_H_
#undef VOLVELLE_KERNELS_CONVERT_INL_H_
#else
#define VOLVELLE_KERNELS_CONVERT_INL_H_
#endif

#include "kernels/load-inl.h"

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

inline void row_to_bfloat(const float* HWY_RESTRICT src, std::uint16_t* HWY_RESTRICT dst,
                          std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = f32_to_bf16(src[i]);
}

template <ElementType E>
void widen(const std::byte* HWY_RESTRICT src, float* HWY_RESTRICT dst, std::int64_t n) {
  const FloatTag d;
  for_each_vector<E>(src, n, [&](std::int64_t i, FloatVec v) HWY_ATTR {
    if (i + kLanes <= n) {
      hn::StoreU(v, d, dst + i);
    } else {
      HWY_ALIGN float last[kLanes];
      hn::Store(v, d, last);
      std::memcpy(dst + i, last, static_cast<std::size_t>(n - i) * sizeof(float));
    }
  });
}

inline void row_to_floats(const std::byte* src, ElementType type, float* dst, std::int64_t n) {
  with_type(type, [&](auto e) HWY_ATTR { widen<e()>(src, dst, n); });
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_CONVERT_INL_H_
