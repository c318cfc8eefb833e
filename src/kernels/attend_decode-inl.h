// Decode: s = K q, block softmax in base 2, O += p V, for up to 4 heads at once, compiled once per
// target.
//
// Bound by memory: every row is read once from memory for all queries (the second sub-group finds
// it in L1/L2), and lines are prefetched into L2 well ahead, one per inner step. Rows go four at a
// time: their four dot products share one transposing reduction, whose tree is the same for each
// row, so where a quad begins does not matter. V is added strictly row by row, O travels through L1
// once per quad. Cost: 2 * rows * (head_dim_k + head_dim_v) FLOPs per query.
#if defined(VOLVELLE_KERNELS_ATTEND_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_ATTEND_DECODE_INL_H_
#undef VOLVELLE_KERNELS_ATTEND_DECODE_INL_H_
#else
#define VOLVELLE_KERNELS_ATTEND_DECODE_INL_H_
#endif

#include <cfloat>
#include <cmath>

#include "kernels/attend_decode.hpp"
#include "kernels/exp-inl.h"
#include "kernels/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

constexpr std::ptrdiff_t kPrefetchBytes = 12 * 1024;  // 8-16 KB ahead measured best
constexpr int kSubGroup = 4;                          // heads per pass over the block
constexpr std::int64_t kScoreStride = kDecodeBlockMax;

/// Four row pointers at a time from a list of runs; the last row is repeated when less than four
/// are left.
template <class T>
class QuadWalker {
 public:
  QuadWalker(const KeyValueRun* runs, bool keys, std::int64_t row_elements)
      : run_(runs), keys_(keys), row_elements_(row_elements) {
    open();
  }

  HWY_INLINE void next(const T* rows[4], std::int64_t n_left) {
    if (left_ >= 4) {
      for (int j = 0; j < 4; ++j) rows[j] = row_ + j * row_elements_;
      row_ += 4 * row_elements_;
      left_ -= 4;
      return;
    }
    next_across_runs(rows, n_left);
  }

 private:
  void open() {
    row_ = reinterpret_cast<const T*>(keys_ ? run_->k : run_->v);
    left_ = run_->n;
  }
  HWY_NOINLINE void next_across_runs(const T* rows[4], std::int64_t n_left) {
    for (std::int64_t j = 0; j < 4; ++j) {
      if (j >= n_left) {
        rows[j] = rows[j - 1];
        continue;
      }
      while (left_ == 0) {
        ++run_;
        open();
      }
      rows[j] = row_;
      row_ += row_elements_;
      --left_;
    }
  }

  const KeyValueRun* run_;
  bool keys_;
  std::int64_t row_elements_;
  const T* row_ = nullptr;
  std::int64_t left_ = 0;
};

/// out[0..4) = the lane sums of a, b, c, d, all by the same tree.
HWY_INLINE void store_sums(FloatVec a, FloatVec b, FloatVec c, FloatVec e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(e);
#else
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> dw;
  const FloatVec ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const FloatVec ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto wide_ab = hn::BitCast(dw, ab);
  const auto wide_ce = hn::BitCast(dw, ce);
  const FloatVec sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, wide_ab, wide_ce)),
                                hn::BitCast(d, hn::InterleaveUpper(dw, wide_ab, wide_ce)));
  // Each 128-bit block now holds partial sums of all four; fold the blocks.
#if HWY_TARGET == HWY_AVX3
  const hn::Half<FloatTag> d8;
  const hn::Half<decltype(d8)> d4;
  const auto half = hn::Add(hn::LowerHalf(d8, sums), hn::UpperHalf(d8, sums));
  hn::StoreU(hn::Add(hn::LowerHalf(d4, half), hn::UpperHalf(d4, half)), d4, out);
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<FloatTag> d4;
  hn::StoreU(hn::Add(hn::LowerHalf(d4, sums), hn::UpperHalf(d4, sums)), d4, out);
#else
  hn::StoreU(sums, d, out);
#endif
#endif
}

/// Dot products of NH queries with NR rows, accumulated lane by lane.
template <class T, int NH, int NR, bool kPrefetch>
HWY_INLINE void accumulate_dots(const float* q, std::ptrdiff_t q_stride, const T* const* rows,
                                std::int64_t dim, FloatVec (&acc)[NH][NR]) {
  const FloatTag d;
  constexpr std::int64_t kLinesPerStep =
      HWY_MAX(1, NR * kLanes * static_cast<std::int64_t>(sizeof(T)) / 64);
  const char* ahead = reinterpret_cast<const char*>(rows[0]) + kPrefetchBytes;
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    if constexpr (kPrefetch) {
      for (std::int64_t line = 0; line < kLinesPerStep; ++line) {
        __builtin_prefetch(ahead + i * NR * static_cast<std::int64_t>(sizeof(T)) + 64 * line, 0, 2);
      }
    }
    FloatVec query[NH];
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h) query[h] = hn::Load(d, q + h * q_stride + i);
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) {
      const FloatVec key = load_floats(rows[r] + i);
#pragma GCC unroll 4
      for (int h = 0; h < NH; ++h) acc[h][r] = hn::MulAdd(key, query[h], acc[h][r]);
    }
  }
  if (i < dim) {
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) {
      const FloatVec key = load_tail(rows[r] + i, dim - i);
#pragma GCC unroll 4
      for (int h = 0; h < NH; ++h)
        acc[h][r] = hn::MulAdd(key, hn::Load(d, q + h * q_stride + i), acc[h][r]);
    }
  }
}

template <class T, int NH, bool kPrefetch>
HWY_INLINE void score_quad(const float* q, std::ptrdiff_t q_stride, const T* const* rows,
                           std::int64_t dim, float* s) {
  const FloatTag d;
  // 16 registers hold 3 x 4 accumulators with their operands; 4 heads go two rows at a time there.
  if constexpr (NH <= 3 || HWY_TARGET == HWY_AVX3) {
    FloatVec acc[NH][4];
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) acc[h][r] = hn::Zero(d);
    }
    accumulate_dots<T, NH, 4, kPrefetch>(q, q_stride, rows, dim, acc);
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h)
      store_sums(acc[h][0], acc[h][1], acc[h][2], acc[h][3], s + h * kScoreStride);
  } else {
    for (int r = 0; r < 4; r += 2) {
      FloatVec acc[NH][2];
#pragma GCC unroll 4
      for (int h = 0; h < NH; ++h) acc[h][0] = acc[h][1] = hn::Zero(d);
      accumulate_dots<T, NH, 2, kPrefetch>(q, q_stride, rows + r, dim, acc);
#pragma GCC unroll 4
      for (int h = 0; h < NH; h += 2) {
        HWY_ALIGN float sums[4];
        store_sums(acc[h][0], acc[h][1], acc[h + 1][0], acc[h + 1][1], sums);
        for (int j = 0; j < 4; ++j) s[(h + j / 2) * kScoreStride + r + j % 2] = sums[j];
      }
    }
  }
}

template <class T, int NH, bool kPrefetch>
void score_rows(const DecodeBlock& block, int first, std::int64_t n, float* s) noexcept {
  const float* q = block.q + first * block.q_stride;
  QuadWalker<T> walker(block.runs, true, block.head_dim_k);
  for (std::int64_t t = 0; t < n; t += 4) {
    const T* rows[4];
    walker.next(rows, n - t);
    score_quad<T, NH, kPrefetch>(q, block.q_stride, rows, block.head_dim_k, s + t);
  }
}

/// Turns n scores of query `row` into weights 2^(s - m) in place and updates its m, d and the scale
/// of its o. `s` has room for n rounded up to kLanes.
HWY_INLINE void block_softmax(const DecodeBlock& block, int row, std::int64_t n, float* s) {
  float& m = block.m[row];
  float& d_sum = block.d[row];
  float* o = block.o + row * block.o_stride;
  const float cap_log2 = block.cap_log2;
  const FloatTag d;
  const std::int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
  for (std::int64_t t = n; t < padded; ++t)
    s[t] = s[n - 1];  // repeats change no maximum; their weights are cleared below
  FloatVec largest = hn::Set(d, -FLT_MAX);
  FloatVec poison = hn::Zero(d);
  for (std::int64_t t = 0; t < padded; t += kLanes) {
    FloatVec x = hn::Load(d, s + t);
    poison = hn::MulAdd(x, hn::Zero(d), poison);  // NaN if any score is NaN or infinite
    if (cap_log2 > 0.0f) {
      x = hn::Mul(hn::Set(d, cap_log2), tanh(x));
      hn::Store(x, d, s + t);
    }
    largest = hn::Max(largest, x);
  }
  const float block_max = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (block_max > m) {
    const float shrink = exp2f(m - block_max);
    d_sum *= shrink;
    m = block_max;
    const FloatVec factor = hn::Set(d, shrink);
    for (std::int64_t i = 0; i < block.head_dim_v; i += kLanes)
      hn::Store(hn::Mul(hn::Load(d, o + i), factor), d, o + i);
  }
  FloatVec sum = poison;
  const FloatVec shift = hn::Set(d, m);
  std::int64_t t = 0;
  for (; t + kLanes <= n; t += kLanes) {
    const FloatVec weight = exp2_nonpositive(hn::Sub(hn::Load(d, s + t), shift));
    hn::Store(weight, d, s + t);
    sum = hn::Add(sum, weight);
  }
  if (t < n) {
    const FloatVec weight =
        hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n - t)),
                           exp2_nonpositive(hn::Sub(hn::Load(d, s + t), shift)));
    hn::Store(weight, d, s + t);
    sum = hn::Add(sum, weight);
  }
  d_sum += hn::GetLane(hn::SumOfLanes(d, sum));
}

/// o[h] += sum_r p[h][r] * rows[r], row after row.
template <class T, int NH, int NR, bool kPrefetch>
HWY_INLINE void add_rows(const float* p, const T* const* rows, std::int64_t dim, float* o,
                         std::ptrdiff_t o_stride) {
  const FloatTag d;
  constexpr std::int64_t kLinesPerStep =
      HWY_MAX(1, NR * kLanes * static_cast<std::int64_t>(sizeof(T)) / 64);
  const char* ahead = reinterpret_cast<const char*>(rows[0]) + kPrefetchBytes;
  FloatVec weight[NH][NR];
#pragma GCC unroll 4
  for (int h = 0; h < NH; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) weight[h][r] = hn::Set(d, p[h * kScoreStride + r]);
  }
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    if constexpr (kPrefetch) {
      for (std::int64_t line = 0; line < kLinesPerStep; ++line) {
        __builtin_prefetch(ahead + i * NR * static_cast<std::int64_t>(sizeof(T)) + 64 * line, 0, 2);
      }
    }
    FloatVec sum[NH];
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h) sum[h] = hn::Load(d, o + h * o_stride + i);
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) {
      const FloatVec value = load_floats(rows[r] + i);
#pragma GCC unroll 4
      for (int h = 0; h < NH; ++h) sum[h] = hn::MulAdd(weight[h][r], value, sum[h]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h) hn::Store(sum[h], d, o + h * o_stride + i);
  }
  if (i < dim) {
    for (int r = 0; r < NR; ++r) {
      const FloatVec value = load_tail(rows[r] + i, dim - i);
      for (int h = 0; h < NH; ++h) {
        float* out = o + h * o_stride + i;
        hn::Store(hn::MulAdd(weight[h][r], value, hn::Load(d, out)), d, out);
      }
    }
  }
}

template <class T, int NH, bool kPrefetch>
void weigh_rows(const DecodeBlock& block, int first, std::int64_t n, const float* s) noexcept {
  float* o = block.o + first * block.o_stride;
  QuadWalker<T> walker(block.runs, false, block.head_dim_v);
  for (std::int64_t t = 0; t < n; t += 4) {
    const T* rows[4];
    walker.next(rows, n - t);
    if constexpr (NH <= 3 || HWY_TARGET == HWY_AVX3) {
      add_rows<T, NH, 4, kPrefetch>(s + t, rows, block.head_dim_v, o, block.o_stride);
    } else {
      add_rows<T, NH, 2, kPrefetch>(s + t, rows, block.head_dim_v, o, block.o_stride);
      add_rows<T, NH, 2, kPrefetch>(s + t + 2, rows + 2, block.head_dim_v, o, block.o_stride);
    }
  }
}

template <class K, class V, int NH, bool kPrefetch>
void attend_sub_group(const DecodeBlock& block, int first, std::int64_t n) noexcept {
  HWY_ALIGN float s[kSubGroup * kScoreStride];
  score_rows<K, NH, kPrefetch>(block, first, n, s);
  for (int h = 0; h < NH; ++h) {
    float* scores = s + h * kScoreStride;
    block_softmax(block, first + h, n, scores);
    for (std::int64_t t = n; t % 4 != 0; ++t)
      scores[t] = 0.0f;  // rows repeated to fill a quad weigh nothing
  }
  weigh_rows<V, NH, kPrefetch>(block, first, n, s);
}

template <class K, class V, bool kPrefetch>
void attend_sub_group_of(const DecodeBlock& block, int first, int count, std::int64_t n) noexcept {
  switch (count) {
    case 1:
      return attend_sub_group<K, V, 1, kPrefetch>(block, first, n);
    case 2:
      return attend_sub_group<K, V, 2, kPrefetch>(block, first, n);
    case 3:
      return attend_sub_group<K, V, 3, kPrefetch>(block, first, n);
    default:
      return attend_sub_group<K, V, 4, kPrefetch>(block, first, n);
  }
}

template <class K, class V>
void attend_block(const DecodeBlock& block) noexcept {
  std::int64_t n = 0;
  for (int r = 0; r < block.n_runs; ++r) n += block.runs[r].n;
  if (n == 0) return;
  // Even parts of at most kSubGroup: 5 heads go as 3 + 2, not 4 + 1. Only the first part reads from
  // memory.
  int first = 0;
  for (int parts = (block.n_queries + kSubGroup - 1) / kSubGroup; parts > 0; --parts) {
    const int count = (block.n_queries - first + parts - 1) / parts;
    if (first == 0) {
      attend_sub_group_of<K, V, true>(block, first, count, n);
    } else {
      attend_sub_group_of<K, V, false>(block, first, count, n);
    }
    first += count;
  }
}

// Not noexcept: the dispatch table holds plain function types; the public wrapper is.
inline void decode_block(const DecodeBlock& block) {
  const bool half_keys = block.k_type == ElementType::kF16;
  const bool half_values = block.v_type == ElementType::kF16;
  if (half_keys && half_values) return attend_block<hwy::float16_t, hwy::float16_t>(block);
  if (half_keys) return attend_block<hwy::float16_t, float>(block);
  if (half_values) return attend_block<float, hwy::float16_t>(block);
  attend_block<float, float>(block);
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_ATTEND_DECODE_INL_H_
