// out = o * factor + 0, compiled once per target; one rounding per element, so bits are the same
// everywhere. NaN and infinity are found by x * 0, which is 0 for all other x. Bound by memory.
#if defined(VOLVELLE_KERNELS_SCALE_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_SCALE_ROW_INL_H_
#undef VOLVELLE_KERNELS_SCALE_ROW_INL_H_
#else
#define VOLVELLE_KERNELS_SCALE_ROW_INL_H_
#endif

#include <cmath>

#include "kernels/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

inline bool scaled_row(const float* HWY_RESTRICT o, float factor, std::int64_t n,
                       float* HWY_RESTRICT out) {
  const FloatTag d;
  const FloatVec f = hn::Set(d, factor);
  FloatVec poison = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const FloatVec x = hn::MulAdd(hn::LoadU(d, o + i), f, hn::Zero(d));
    hn::StoreU(x, d, out + i);
    poison = hn::MulAdd(x, hn::Zero(d), poison);
  }
  bool finite = hn::AllTrue(d, hn::Eq(poison, hn::Zero(d)));
  for (; i < n; ++i) {
    out[i] = o[i] * factor + 0.0f;
    finite = finite && std::isfinite(out[i]);
  }
  return finite;
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_SCALE_ROW_INL_H_
