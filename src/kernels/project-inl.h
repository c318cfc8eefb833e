// Products of a few rows with a matrix that fits the cache, compiled once per target. Four rows and
// two vectors of outputs stay in registers.
#if defined(VOLVELLE_KERNELS_PROJECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_PROJECT_INL_H_
#undef VOLVELLE_KERNELS_PROJECT_INL_H_
#else
#define VOLVELLE_KERNELS_PROJECT_INL_H_
#endif

#include <cmath>

#include "kernels/load-inl.h"
#include "kernels/project.hpp"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

/// NR rows from `row` on, NV vectors of outputs from `column` on.
template <int NR, int NV>
HWY_INLINE void project_block(const Projection& p, std::int64_t row, std::int64_t column) {
  const FloatTag d;
  const float* rows = p.rows + row * p.row_stride;
  float* out = p.out + row * p.out_stride + column;
  FloatVec acc[NR][NV];
#pragma GCC unroll 4
  for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[r][v] = hn::Zero(d);
  }
  for (int i = 0; i < p.dim; ++i) {
    FloatVec b[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v)
      b[v] = hn::LoadU(d, p.basis + i * p.basis_stride + column + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) {
      const FloatVec x = hn::Set(d, rows[r * p.row_stride + i] - p.mean[i]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(x, b[v], acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, out + r * p.out_stride + v * kLanes);
  }
}

template <int NR>
HWY_INLINE void project_some(const Projection& p, std::int64_t row) {
  std::int64_t column = 0;
  for (; column + kLanes < p.n_out && column + 2 * kLanes <= p.basis_stride; column += 2 * kLanes)
    project_block<NR, 2>(p, row, column);
  for (; column < p.n_out; column += kLanes) project_block<NR, 1>(p, row, column);
}

inline void project(const Projection& p) {
  std::int64_t row = 0;
  for (; row + 4 <= p.n; row += 4) project_some<4>(p, row);
  for (; row < p.n; ++row) project_some<1>(p, row);
}

inline void combine(const float* x, int n, const float* basis, std::ptrdiff_t basis_stride, int dim,
                    float* out) {
  const FloatTag d;
  std::int64_t j = 0;
  for (; j + kLanes <= dim; j += kLanes) {
    FloatVec even = hn::LoadU(d, out + j);
    FloatVec odd = hn::Zero(d);
    int i = 0;
    for (; i + 2 <= n; i += 2) {
      even = hn::MulAdd(hn::Set(d, x[i]), hn::LoadU(d, basis + i * basis_stride + j), even);
      odd = hn::MulAdd(hn::Set(d, x[i + 1]), hn::LoadU(d, basis + (i + 1) * basis_stride + j), odd);
    }
    if (i < n)
      even = hn::MulAdd(hn::Set(d, x[i]), hn::LoadU(d, basis + i * basis_stride + j), even);
    hn::StoreU(hn::Add(even, odd), d, out + j);
  }
  for (; j < dim; ++j) {
    for (int i = 0; i < n; ++i) out[j] += x[i] * basis[i * basis_stride + j];
  }
}

inline float dot_product(const float* a, const float* b, int dim) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes)
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < dim; ++i) total += a[i] * b[i];
  return total;
}

/// Level of a coordinate that is y steps large.
HWY_INLINE FloatVec level_of(FloatVec y, FloatVec half) {
  const FloatTag d;
  const FloatVec level = hn::Add(hn::Floor(y), half);
  const FloatVec most = hn::Sub(hn::Add(half, half), hn::Set(d, 1.0f));
  return hn::Min(hn::Max(level, hn::Zero(d)), most);
}

inline void quantize(const LevelRule& rule, const float* x, float inverse_scale,
                     std::uint8_t* levels) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::uint8_t, FloatTag> db;
  for (std::int64_t i = 0; i < rule.n_padded; i += kLanes) {
    const FloatVec y = hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, rule.inverse_step + i)),
                               hn::Set(d, inverse_scale));
    const FloatVec level = level_of(y, hn::LoadU(d, rule.half + i));
    hn::StoreU(hn::DemoteTo(db, hn::ConvertTo(di, level)), db, levels + i);
  }
}

inline float ratio(const LevelRule& rule, const float* x) {
  const FloatTag d;
  FloatVec largest = hn::Zero(d);
  for (std::int64_t i = 0; i < rule.n_padded; i += kLanes) {
    const FloatVec y = hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, rule.inverse_step + i));
    largest = hn::Max(largest, hn::Div(hn::Abs(y), hn::LoadU(d, rule.half + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_PROJECT_INL_H_
