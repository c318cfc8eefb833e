// Loads of stored elements as vectors of floats, compiled once per target. Element types: float and
// half.
//
// Rows need no alignment beyond their element and are never read past their end: the tail of a row
// whose length is not a multiple of the vector goes through a zero-filled buffer.
#if defined(VOLVELLE_KERNELS_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_LOAD_INL_H_
#undef VOLVELLE_KERNELS_LOAD_INL_H_
#else
#define VOLVELLE_KERNELS_LOAD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));

/// Elements p[0, lanes of d) as floats.
template <class DF>
HWY_INLINE hn::Vec<DF> load_floats(DF d, const float* p) {
  return hn::LoadU(d, p);
}

template <class DF>
HWY_INLINE hn::Vec<DF> load_floats(DF d, const hwy::float16_t* p) {
  const hn::Rebind<std::uint16_t, DF> bits;
  const auto stored = hn::LoadU(bits, reinterpret_cast<const std::uint16_t*>(p));
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, DF> half;
  return hn::PromoteTo(d, hn::BitCast(half, stored));
#else
  // Highway's emulation turns infinities and NaN into finite numbers, which would hide them; this
  // one is exact for all.
  const hn::RebindToSigned<DF> di;
  const auto wide = hn::PromoteTo(di, stored);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(di, 0x7FFF)));
  const auto value = hn::BitCast(di, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
  const auto not_finite = hn::Gt(magnitude, hn::Set(di, (0x7C00 << 13) - 1));
  const auto exponent = hn::IfThenElseZero(not_finite, hn::Set(di, 0x7F800000));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(di, 0x8000)));
  return hn::BitCast(d, hn::Or(hn::Or(value, exponent), sign));
#endif
}

/// The first n < lanes elements, zeros behind.
template <class DF, class T>
HWY_INLINE hn::Vec<DF> load_tail(DF d, const T* p, std::int64_t n) {
  HWY_ALIGN unsigned char buffer[hn::MaxLanes(DF()) * sizeof(T)] = {};
  std::memcpy(buffer, p, static_cast<std::size_t>(n) * sizeof(T));
  return load_floats(d, reinterpret_cast<const T*>(buffer));
}

/// dst[0, padded) = the n elements at src, then zeros. `padded` is a multiple of kLanes, dst is
/// aligned.
template <class T>
HWY_INLINE void load_row(const T* src, std::int64_t n, float* dst, std::int64_t padded) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::Store(load_floats(d, src + i), d, dst + i);
  if (i < n) {
    hn::Store(load_tail(d, src + i, n - i), d, dst + i);
    i += kLanes;
  }
  for (; i < padded; i += kLanes) hn::Store(hn::Zero(d), d, dst + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_LOAD_INL_H_
