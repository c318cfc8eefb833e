// Loads of stored elements as vectors of floats, compiled once per target, for all element types.
//
// Rows need no alignment beyond their element (block types: none) and are never read past their
// end: the tail of a row whose length is not a multiple of the vector goes through a zero-filled
// buffer; block types are filled with zeros where they are stored. All conversions are exact, NaN
// and infinity stay what they are, and a NaN or infinite scale makes its whole block not finite.
#if defined(VOLVELLE_KERNELS_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_LOAD_INL_H_
#undef VOLVELLE_KERNELS_LOAD_INL_H_
#else
#define VOLVELLE_KERNELS_LOAD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "volvelle/base/element_type.hpp"
#include "volvelle/base/half.hpp"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));
constexpr bool kHasF16C = HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86;

template <class DF>
constexpr std::int64_t lanes() {
  return static_cast<std::int64_t>(hn::MaxLanes(DF()));
}

/// Elements that a walk over a row handles at once: a vector, or a block with one scale.
template <class DF, ElementType E>
constexpr std::int64_t chunk_elements() {
  return is_block_quantized(E) ? kQuantBlock : lanes<DF>();
}
template <class DF, ElementType E>
constexpr std::int64_t chunk_bytes() {
  return static_cast<std::int64_t>(row_bytes(E, chunk_elements<DF, E>()));
}

/// The first `lanes` halves at p as floats.
template <class DF>
HWY_INLINE hn::Vec<DF> load_halves(DF d, const std::byte* p) {
  const hn::Rebind<std::uint16_t, DF> bits;
  const auto stored = hn::LoadU(bits, reinterpret_cast<const std::uint16_t*>(p));
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
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

/// The vector at `p` of a type without blocks.
template <ElementType E, class DF>
HWY_INLINE hn::Vec<DF> load_plain(DF d, const std::byte* p) {
  static_assert(!is_block_quantized(E));
  if constexpr (E == ElementType::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
  } else if constexpr (E == ElementType::kF16) {
    return load_halves(d, p);
  } else {
    const hn::Rebind<std::uint16_t, DF> bits;
    const hn::RebindToUnsigned<DF> du;
    const auto stored = hn::LoadU(bits, reinterpret_cast<const std::uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, stored)));
  }
}

/// The first n < lanes elements at `p` of a type without blocks, zeros behind.
template <ElementType E, class DF>
HWY_INLINE hn::Vec<DF> load_tail(DF d, const std::byte* p, std::int64_t n) {
  HWY_ALIGN std::byte buffer[row_bytes(E, lanes<DF>())] = {};
  std::memcpy(buffer, p, row_bytes(E, n));
  return load_plain<E>(d, buffer);
}

/// Offset of element i, which begins a block in block types.
template <ElementType E>
constexpr std::int64_t byte_of(std::int64_t i) {
  if (is_block_quantized(E)) return i / kQuantBlock * chunk_bytes<FloatTag, E>();
  return i * static_cast<std::int64_t>(row_bytes(E, 1));
}

/// Scale of the block at `p` in all lanes.
template <class DF>
HWY_INLINE hn::Vec<DF> load_scale(DF d, const std::byte* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const hn::Rebind<std::uint16_t, DF> db;
  const hn::Rebind<hwy::float16_t, DF> half;
  return hn::PromoteTo(d, hn::BitCast(half, hn::Set(db, bits)));
#else
  return hn::Set(d, f16_to_f32(bits));
#endif
}

/// Elements [x, x + lanes) of the block at `p`, whose scale is given.
template <ElementType E, class DF>
HWY_INLINE hn::Vec<DF> load_quants(DF d, const std::byte* p, std::int64_t x, hn::Vec<DF> scale) {
  static_assert(is_block_quantized(E));
  const hn::RebindToSigned<DF> di;
  if constexpr (E == ElementType::kQ8_0) {
    const hn::Rebind<std::int8_t, DF> bytes;
    const auto q = hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(p + 2 + x));
    return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, q)), scale);
  } else {
    constexpr std::int64_t kHalf = kQuantBlock / 2;
    const hn::Rebind<std::uint8_t, DF> bytes;
    const auto pairs = hn::PromoteTo(
        di, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(p + 2 + x % kHalf)));
    const auto q = x < kHalf ? hn::And(pairs, hn::Set(di, 15)) : hn::ShiftRight<4>(pairs);
    return hn::Mul(hn::ConvertTo(d, hn::Sub(q, hn::Set(di, 8))), scale);
  }
}

/// put(i, vector) for each vector of the n elements at `row`, in order; lanes from n on are zeros
/// (or NaN in a block that is not finite).
template <ElementType E, class Put>
HWY_INLINE void for_each_vector(const std::byte* row, std::int64_t n, Put put) {
  const FloatTag d;
  std::int64_t i = 0;
  if constexpr (is_block_quantized(E)) {
    for (; i < n; row += row_bytes(E, kQuantBlock)) {
      const FloatVec scale = load_scale(d, row);
      const std::int64_t end = HWY_MIN(n - i, kQuantBlock);
      for (std::int64_t x = 0; x < end; x += kLanes, i += kLanes)
        put(i, load_quants<E>(d, row, x, scale));
    }
  } else {
    for (; i + kLanes <= n; i += kLanes) put(i, load_plain<E>(d, row + row_bytes(E, i)));
    if (i < n) put(i, load_tail<E>(d, row + row_bytes(E, i), n - i));
  }
}

/// f(std::integral_constant<ElementType, type>()): one instance per type.
template <class F>
HWY_INLINE auto with_type(ElementType type, F f) {
  switch (type) {
    case ElementType::kF32:
      return f(std::integral_constant<ElementType, ElementType::kF32>());
    case ElementType::kF16:
      return f(std::integral_constant<ElementType, ElementType::kF16>());
    case ElementType::kBF16:
      return f(std::integral_constant<ElementType, ElementType::kBF16>());
    case ElementType::kQ8_0:
      return f(std::integral_constant<ElementType, ElementType::kQ8_0>());
    case ElementType::kQ4_0:
      break;
  }
  return f(std::integral_constant<ElementType, ElementType::kQ4_0>());
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_LOAD_INL_H_
