// Hash and products of a tile's dither, compiled once per target. Cost: about ten integer
// operations for 2 x lanes numbers, and a product for each number and query.
#if defined(VOLVELLE_KERNELS_DITHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_DITHER_INL_H_
#undef VOLVELLE_KERNELS_DITHER_INL_H_
#else
#define VOLVELLE_KERNELS_DITHER_INL_H_
#endif

#include "kernels/dither.hpp"
#include "kernels/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

using DitherTag = hn::CappedTag<float, 16>;
constexpr std::int64_t kDitherLanes = static_cast<std::int64_t>(hn::MaxLanes(DitherTag()));

/// The same steps as dither_number() in dither.cpp, a lane a row.
template <class DU, class VU = hn::Vec<DU>>
HWY_INLINE VU hash_rows(DU du, VU counter, std::uint64_t salt) {
  VU x = hn::Add(hn::Mul(counter, hn::Set(du, kDitherFactor0)),
                 hn::Set(du, static_cast<std::uint32_t>(salt)));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, kDitherFactor1));
  x = hn::Xor(x, hn::Set(du, static_cast<std::uint32_t>(salt >> 32)));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(du, kDitherFactor2));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

template <int NQ>
HWY_INLINE void subtract_queries(const DitherScan& scan, int first, float* out,
                                 std::ptrdiff_t out_stride) {
  const DitherTag d;
  const hn::RebindToUnsigned<DitherTag> du;
  const hn::RebindToSigned<DitherTag> di;
  const float* a = scan.a + first * scan.stride;
  for (std::int64_t t = 0; t < kCodeTile; t += kDitherLanes) {
    hn::Vec<DitherTag> sum[NQ];
#pragma GCC unroll 4
    for (int h = 0; h < NQ; ++h) sum[h] = hn::Zero(d);
    for (int i = 0; i < scan.n_coordinates; i += 2) {
      const auto counter = hn::Iota(du, static_cast<std::uint32_t>(i / 2 * kCodeTile + t));
      const auto hash = hn::BitCast(di, hash_rows(du, counter, scan.salt));
      const auto low = hn::ConvertTo(d, hn::ShiftRight<16>(hn::ShiftLeft<16>(hash)));
      const auto high = hn::ConvertTo(d, hn::ShiftRight<16>(hash));
#pragma GCC unroll 4
      for (int h = 0; h < NQ; ++h) {
        sum[h] = hn::MulAdd(low, hn::Set(d, a[h * scan.stride + i]), sum[h]);
        sum[h] = hn::MulAdd(high, hn::Set(d, a[h * scan.stride + i + 1]), sum[h]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < NQ; ++h) {
      float* to = out + (first + h) * out_stride + t;
      hn::StoreU(hn::Sub(hn::LoadU(d, to), sum[h]), d, to);
    }
  }
}

inline void subtract_all(const DitherScan& scan, float* out, std::ptrdiff_t out_stride) {
  int first = 0;
  for (; first + 4 <= scan.n_queries; first += 4) subtract_queries<4>(scan, first, out, out_stride);
  const int left = scan.n_queries - first;
  if (left == 3) subtract_queries<3>(scan, first, out, out_stride);
  if (left == 2) subtract_queries<2>(scan, first, out, out_stride);
  if (left == 1) subtract_queries<1>(scan, first, out, out_stride);
}

inline ProductSums product_sums(const float* weight, const std::uint16_t* halves) {
  const DitherTag d;
  auto sum_w = hn::Zero(d);
  auto sum_wt = hn::Zero(d);
  auto squares = hn::Zero(d);
  auto max_w = hn::Zero(d);
  auto max_wt = hn::Zero(d);
  for (std::int64_t t = 0; t < kCodeTile; t += kDitherLanes) {
    const auto w = hn::LoadU(d, weight + t);
    const auto wt = hn::Mul(w, load_halves(d, reinterpret_cast<const std::byte*>(halves + t)));
    sum_w = hn::Add(sum_w, w);
    sum_wt = hn::Add(sum_wt, wt);
    squares = hn::MulAdd(wt, wt, squares);
    max_w = hn::Max(max_w, w);
    max_wt = hn::Max(max_wt, wt);
  }
  return {hn::GetLane(hn::SumOfLanes(d, sum_w)), hn::GetLane(hn::SumOfLanes(d, sum_wt)),
          hn::GetLane(hn::SumOfLanes(d, squares)), hn::GetLane(hn::MaxOfLanes(d, max_w)),
          hn::GetLane(hn::MaxOfLanes(d, max_wt))};
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_DITHER_INL_H_
