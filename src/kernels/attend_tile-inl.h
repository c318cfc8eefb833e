// Tiled attention: S = K Q^T, online softmax down the keys, O += P V, compiled once per target.
//
// Two register-blocked products. Scores: kKeyStep keys x up to 3 vectors of query rows, one
// multiply-add chain per (key, row) over the head dimension. Values: kRowStep rows x 2 vectors of
// O, one chain per (row, column) over the keys. Both keep 12 or more accumulators in registers and
// read one broadcast per 2-3 multiply-adds, so they run near the FMA peak from L1/L2. The softmax
// is about a tenth of the time at head_dim 64. Chains have a fixed order, so a row's bits depend on
// its own query, its visible keys and the tile borders only. 4 * kTileKeys * rows * head_dim FLOPs.
#if defined(VOLVELLE_KERNELS_ATTEND_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_ATTEND_TILE_INL_H_
#undef VOLVELLE_KERNELS_ATTEND_TILE_INL_H_
#else
#define VOLVELLE_KERNELS_ATTEND_TILE_INL_H_
#endif

#include <cfloat>

#include "kernels/attend_tile.hpp"
#include "kernels/exp-inl.h"
#include "kernels/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

// 32 registers on AVX-512, 16 elsewhere.
constexpr std::int64_t kKeyStep = HWY_TARGET == HWY_AVX3 ? 8 : 4;
static_assert(kTileKeys % kKeyStep == 0);

/// Rows of the value product: divides n_vectors * kLanes and leaves room for the operands.
constexpr std::int64_t row_step(std::int64_t n_vectors) {
  if (kLanes == 1) return n_vectors;
  if (HWY_TARGET == HWY_AVX3) return n_vectors == 3 ? 12 : 8;
  return n_vectors == 3 ? 6 : 4;
}

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

/// Value panels are two vectors wide, the last one may be one vector: panel c / (2 kLanes), then
/// key, then column.
HWY_INLINE float* value_at(float* v, std::int64_t dim, std::int64_t key, std::int64_t column) {
  const std::int64_t panel = column / (2 * kLanes) * (2 * kLanes);
  const std::int64_t width = HWY_MIN(2 * kLanes, round_up(dim, kLanes) - panel);
  return v + panel * kTileKeys + key * width + (column - panel);
}

#if HWY_TARGET != HWY_SCALAR
/// 4 floats at each of p[0], p[4], p[8] .. as the 128-bit blocks of a vector.
template <class DF>
HWY_INLINE hn::Vec<DF> load_blocks(DF d, const float* const* p, std::int64_t i) {
  if constexpr (hn::MaxLanes(DF()) == 4) {
    return hn::LoadU(d, p[0] + i);
  } else {
    const hn::Half<DF> half;
    return hn::Combine(d, load_blocks(half, p + lanes<DF>() / 2, i), load_blocks(half, p, i));
  }
}

/// q[i][0, kLanes) = scale * source[0, kLanes)[i] for i in [0, dim - dim % 4); returns that limit.
HWY_INLINE std::int64_t pack_query_vector(const QueryGroup& g, const float* const* source,
                                          float* q) {
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> dw;
  const FloatVec scale = hn::Set(d, g.scale);
  std::int64_t i = 0;
  for (; i + 4 <= g.dim; i += 4, q += 4 * g.stride) {
    const FloatVec a = load_blocks(d, source, i);
    const FloatVec b = load_blocks(d, source + 1, i);
    const FloatVec c = load_blocks(d, source + 2, i);
    const FloatVec e = load_blocks(d, source + 3, i);
    const auto ab_low = hn::BitCast(dw, hn::InterleaveLower(d, a, b));
    const auto ab_high = hn::BitCast(dw, hn::InterleaveUpper(d, a, b));
    const auto ce_low = hn::BitCast(dw, hn::InterleaveLower(d, c, e));
    const auto ce_high = hn::BitCast(dw, hn::InterleaveUpper(d, c, e));
    const auto store = [&](auto column, std::int64_t j) HWY_ATTR {
      hn::Store(hn::Mul(hn::BitCast(d, column), scale), d, q + j * g.stride);
    };
    store(hn::InterleaveLower(dw, ab_low, ce_low), 0);
    store(hn::InterleaveUpper(dw, ab_low, ce_low), 1);
    store(hn::InterleaveLower(dw, ab_high, ce_high), 2);
    store(hn::InterleaveUpper(dw, ab_high, ce_high), 3);
  }
  return i;
}
#endif

/// q[i][row] = scale * source[row][i], a vector of rows at a time by 4 x 4 transposes in its
/// blocks; rows without a source are zeros.
inline void pack_query_group(const QueryGroup& g) {
  for (std::int64_t r = 0; r < g.stride; r += kLanes) {
    const std::int64_t n = HWY_MIN(g.n_rows - r, kLanes);
    std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    if (n == kLanes) i = pack_query_vector(g, g.source + r, g.q + r);
#endif
    for (; i < g.dim; ++i) {
      float* q = g.q + i * g.stride + r;
      for (std::int64_t j = 0; j < n; ++j) q[j] = g.source[r + j][i] * g.scale;
      for (std::int64_t j = HWY_MAX(n, 0); j < kLanes; ++j) q[j] = 0.0f;
    }
  }
}

/// k[key][0, stride) = the key, then zeros.
template <ElementType E>
void pack_keys(const KeyValueRun& run, const TilePanels& panels, std::int64_t stride) {
  const FloatTag d;
  const std::int64_t dim = panels.head_dim_k;
  const std::byte* row = run.k;
  for (std::int64_t j = 0; j < run.n; ++j, row += row_bytes(E, dim)) {
    float* k = panels.k + (run.offset + j) * stride;
    for_each_vector<E>(row, dim,
                       [&](std::int64_t i, FloatVec v) HWY_ATTR { hn::Store(v, d, k + i); });
    for (std::int64_t i = round_up(dim, kLanes); i < stride; i += kLanes)
      hn::Store(hn::Zero(d), d, k + i);
  }
}

template <ElementType E>
void pack_values(const KeyValueRun& run, const TilePanels& panels) {
  const FloatTag d;
  const std::int64_t dim = panels.head_dim_v;
  const std::byte* row = run.v;
  for (std::int64_t j = 0; j < run.n; ++j, row += row_bytes(E, dim)) {
    for_each_vector<E>(row, dim, [&](std::int64_t i, FloatVec v) HWY_ATTR {
      hn::Store(v, d, value_at(panels.v, dim, run.offset + j, i));
    });
  }
}

inline void clear_keys(const TilePanels& panels, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  const std::int64_t stride = pad_lanes(panels.head_dim_k);
  for (std::int64_t i = begin * stride; i < end * stride; i += kLanes)
    hn::Store(hn::Zero(d), d, panels.k + i);
  for (std::int64_t key = begin; key < end; ++key) {
    for (std::int64_t i = 0; i < panels.head_dim_v; i += kLanes)
      hn::Store(hn::Zero(d), d, value_at(panels.v, panels.head_dim_v, key, i));
  }
}

// Not noexcept: the dispatch tables hold plain function types; the public wrappers are.
inline void pack_panels(const KeyValueRun* runs, std::int64_t n_runs, const TilePanels& panels) {
  const std::int64_t stride = pad_lanes(panels.head_dim_k);
  std::int64_t key = 0;
  for (std::int64_t r = 0; r < n_runs; ++r) {
    clear_keys(panels, key, runs[r].offset);
    key = runs[r].offset + runs[r].n;
    with_type(panels.k_type, [&](auto e) HWY_ATTR { pack_keys<e()>(runs[r], panels, stride); });
    with_type(panels.v_type, [&](auto e) HWY_ATTR { pack_values<e()>(runs[r], panels); });
  }
  clear_keys(panels, key, kTileKeys);
}

/// s[key][rows] = k[key] . q for kKeyStep keys.
template <int NV>
HWY_NOINLINE void score_keys(const float* HWY_RESTRICT k, std::int64_t key_stride,
                             const float* HWY_RESTRICT q, std::int64_t dim,
                             float* HWY_RESTRICT s) noexcept {
  const FloatTag d;
  FloatVec acc[kKeyStep][NV];
#pragma GCC unroll 8
  for (int j = 0; j < kKeyStep; ++j) {
#pragma GCC unroll 3
    for (int x = 0; x < NV; ++x) acc[j][x] = hn::Zero(d);
  }
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < dim; ++i, q += NV * kLanes) {
    FloatVec query[NV];
#pragma GCC unroll 3
    for (int x = 0; x < NV; ++x) query[x] = hn::Load(d, q + x * kLanes);
#pragma GCC unroll 8
    for (int j = 0; j < kKeyStep; ++j) {
      const FloatVec key = hn::Set(d, k[j * key_stride + i]);
#pragma GCC unroll 3
      for (int x = 0; x < NV; ++x) acc[j][x] = hn::MulAdd(key, query[x], acc[j][x]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kKeyStep; ++j) {
#pragma GCC unroll 3
    for (int x = 0; x < NV; ++x) hn::Store(acc[j][x], d, s + (j * NV + x) * kLanes);
  }
}

/// o[row][columns] += sum_key p[key][row] * v[key][columns] for NR rows and NC vectors of columns.
template <int NR, int NC>
HWY_NOINLINE void add_values(const float* HWY_RESTRICT p, std::int64_t rows,
                             const float* HWY_RESTRICT v, std::int64_t n_keys,
                             float* HWY_RESTRICT o, std::int64_t o_stride) noexcept {
  const FloatTag d;
  FloatVec acc[NR][NC];
#pragma GCC unroll 12
  for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < NC; ++c) acc[r][c] = hn::Load(d, o + r * o_stride + c * kLanes);
  }
#pragma GCC unroll 4
  for (std::int64_t key = 0; key < n_keys; ++key, p += rows, v += NC * kLanes) {
    FloatVec value[NC];
#pragma GCC unroll 2
    for (int c = 0; c < NC; ++c) value[c] = hn::Load(d, v + c * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < NR; ++r) {
      const FloatVec weight = hn::Set(d, p[r]);
#pragma GCC unroll 2
      for (int c = 0; c < NC; ++c) acc[r][c] = hn::MulAdd(weight, value[c], acc[r][c]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < NC; ++c) hn::Store(acc[r][c], d, o + r * o_stride + c * kLanes);
  }
}

/// Row limits of one vector of rows, as floats relative to the tile.
struct Limits {
  FloatVec sink_end;
  FloatVec first;
  FloatVec last;
  HWY_INLINE hn::Mask<FloatTag> sees(FloatVec key) const {
    return hn::Or(hn::Lt(key, sink_end), hn::And(hn::Ge(key, first), hn::Lt(key, last)));
  }
};

/// Scores -> weights in place for keys [begin, end); updates m and d; scale[row] = factor that o
/// must shrink by. Returns whether any row's maximum grew.
template <int NV, bool kMasked, bool kCapped>
HWY_INLINE bool tile_softmax(const TileGroup& g, std::int64_t begin, std::int64_t end,
                             float* scale) {
  const FloatTag d;
  const FloatVec lowest = hn::Set(d, -FLT_MAX);
  const FloatVec cap = hn::Set(d, g.cap_log2);
  FloatVec largest[NV];
  FloatVec sum[NV];  // begins as poison: NaN if a visible score is NaN or infinite
  Limits limits[NV];
#pragma GCC unroll 3
  for (int x = 0; x < NV; ++x) {
    largest[x] = lowest;
    sum[x] = hn::Zero(d);
    if constexpr (kMasked) {
      limits[x] = {hn::Load(d, g.sink_end + x * kLanes), hn::Load(d, g.first + x * kLanes),
                   hn::Load(d, g.last + x * kLanes)};
    }
  }
  for (std::int64_t key = begin; key < end; ++key) {
    float* s = g.weights + key * NV * kLanes;
#pragma GCC unroll 3
    for (int x = 0; x < NV; ++x) {
      FloatVec score = hn::Load(d, s + x * kLanes);
      if constexpr (kMasked) {
        const auto seen = limits[x].sees(hn::Set(d, static_cast<float>(key)));
        sum[x] = hn::MulAdd(hn::IfThenElseZero(seen, score), hn::Zero(d), sum[x]);
        if constexpr (kCapped) score = hn::Mul(cap, tanh(d, score));
        score = hn::IfThenElse(seen, score, lowest);
      } else {
        sum[x] = hn::MulAdd(score, hn::Zero(d), sum[x]);
        if constexpr (kCapped) score = hn::Mul(cap, tanh(d, score));
      }
      if constexpr (kMasked || kCapped) hn::Store(score, d, s + x * kLanes);
      largest[x] = hn::Max(largest[x], score);
    }
  }
  bool any_grew = false;
  FloatVec shift[NV];
  FloatVec shrink[NV];
#pragma GCC unroll 3
  for (int x = 0; x < NV; ++x) {
    const FloatVec old = hn::Load(d, g.m + x * kLanes);
    const auto grew = hn::Gt(largest[x], old);
    shift[x] = hn::IfThenElse(grew, largest[x], old);
    shrink[x] = hn::IfThenElse(grew, exp2_nonpositive(d, hn::Sub(old, shift[x])), hn::Set(d, 1.0f));
    hn::Store(shift[x], d, g.m + x * kLanes);
    hn::Store(shrink[x], d, scale + x * kLanes);
    any_grew = any_grew || !hn::AllFalse(d, grew);
  }
  for (std::int64_t key = begin; key < end; ++key) {
    float* s = g.weights + key * NV * kLanes;
#pragma GCC unroll 3
    for (int x = 0; x < NV; ++x) {
      FloatVec weight = exp2_nonpositive(d, hn::Sub(hn::Load(d, s + x * kLanes), shift[x]));
      if constexpr (kMasked)
        weight = hn::IfThenElseZero(limits[x].sees(hn::Set(d, static_cast<float>(key))), weight);
      hn::Store(weight, d, s + x * kLanes);
      sum[x] = hn::Add(sum[x], weight);
    }
  }
#pragma GCC unroll 3
  for (int x = 0; x < NV; ++x) {
    float* row_d = g.d + x * kLanes;
    hn::Store(hn::MulAdd(hn::Load(d, row_d), shrink[x], sum[x]), d, row_d);
  }
  return any_grew;
}

HWY_INLINE void shrink_row(float* o, std::int64_t size, float factor) {
  const FloatTag d;
  const FloatVec f = hn::Set(d, factor);
  for (std::int64_t i = 0; i < size; i += kLanes)
    hn::Store(hn::Mul(hn::Load(d, o + i), f), d, o + i);
}

template <int NV>
void attend_group(const TileGroup& g) noexcept {
  constexpr std::int64_t kRows = NV * kLanes;
  const TilePanels& panels = *g.panels;
  const std::int64_t key_stride = pad_lanes(panels.head_dim_k);
  const std::int64_t o_stride = pad_lanes(panels.head_dim_v);
  const std::int64_t o_size = round_up(panels.head_dim_v, kLanes);
  const std::int64_t begin = g.begin / kKeyStep * kKeyStep;
  const std::int64_t end = round_up(g.end, kKeyStep);
  for (std::int64_t key = begin; key < end; key += kKeyStep) {
    score_keys<NV>(panels.k + key * key_stride, key_stride, g.q, panels.head_dim_k,
                   g.weights + key * kRows);
  }
  HWY_ALIGN float scale[kRows];
  const bool masked = g.last != nullptr;
  const bool capped = g.cap_log2 > 0.0f;
  bool grew;
  if (masked) {
    grew = capped ? tile_softmax<NV, true, true>(g, begin, end, scale)
                  : tile_softmax<NV, true, false>(g, begin, end, scale);
  } else {
    grew = capped ? tile_softmax<NV, false, true>(g, begin, end, scale)
                  : tile_softmax<NV, false, false>(g, begin, end, scale);
  }
  if (grew) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      if (scale[r] != 1.0f) shrink_row(g.o + r * o_stride, o_size, scale[r]);
    }
  }
  constexpr std::int64_t kRowStep = row_step(NV);
  for (std::int64_t c = 0; c < o_size; c += 2 * kLanes) {
    const bool wide = c + 2 * kLanes <= o_size;
    const float* v = panels.v + c * kTileKeys + begin * (wide ? 2 : 1) * kLanes;
    for (std::int64_t r = 0; r < kRows; r += kRowStep) {
      const float* p = g.weights + begin * kRows + r;
      float* o = g.o + r * o_stride + c;
      if (wide) {
        add_values<kRowStep, 2>(p, kRows, v, end - begin, o, o_stride);
      } else {
        add_values<kRowStep, 1>(p, kRows, v, end - begin, o, o_stride);
      }
    }
  }
}

inline void tile_group(const TileGroup& group) {
  switch (group.n_vectors) {
    case 1:
      return attend_group<1>(group);
    case 2:
      return attend_group<2>(group);
    default:
      return attend_group<3>(group);
  }
}

inline std::int64_t lanes_of_target() { return kLanes; }

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_ATTEND_TILE_INL_H_
