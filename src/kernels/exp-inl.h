// Vector exp2 of non-positive numbers and tanh, compiled once per target.
//
//   2^x = 2^n 2^r, n = round(x), |r| <= 1/2; 2^r is the minimax polynomial of degree 5, relative
//   error 7.5e-8 before rounding, about 1.5e-7 with it. x < -126 gives exactly 0, so weights are
//   normal numbers or nothing. tanh x = x (1 + x^2 p(x^2)) for |x| < 0.6 (degree 4 in x^2, error
//   1e-8), else 1 - 2 / (e^(2|x|) + 1) by 2^-2|x|log2(e); relative error below 3e-7 with rounding.
//   Both polynomials were fitted by the Remez exchange.
#if defined(VOLVELLE_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_EXP_INL_H_
#undef VOLVELLE_KERNELS_EXP_INL_H_
#else
#define VOLVELLE_KERNELS_EXP_INL_H_
#endif

#include "kernels/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

/// 2^x for x <= 0; 0 for x < -126 and for NaN (callers find NaN by other means).
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V exp2_nonpositive(DF d, V x) {
  const hn::RebindToSigned<DF> di;
  const V to_integer =
      hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it leaves round(x) in the low bits
  const V n = hn::Add(x, to_integer);
  const V r = hn::Sub(x, hn::Sub(n, to_integer));
  V p = hn::Set(d, 0.0013276472454890609f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.009675540961325169f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.05550713092088699f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.24022120237350464f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.6931469440460205f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0000001192092896f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, n));
  const V result = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.0f)), result);
}

template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V tanh(DF d, V x) {
  const V z = hn::Mul(x, x);
  V p = hn::Set(d, -0.006283045280724764f);
  p = hn::MulAdd(p, z, hn::Set(d, 0.021120954304933548f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.053876183927059174f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.13332931697368622f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.3333333134651184f));
  const V small = hn::MulAdd(hn::Mul(x, z), p, x);

  const V magnitude = hn::Abs(x);
  const V one = hn::Set(d, 1.0f);
  const V e = exp2_nonpositive(d, hn::Mul(magnitude, hn::Set(d, -2.8853900817779268f)));
  const V large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.6f)), small, large);
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_EXP_INL_H_
