// Decode: s = K q, block softmax in base 2, O += p V, for up to 4 heads at once, compiled once per
// target.
//
// Bound by memory: every row is read once from memory for all queries (the second sub-group finds
// it in L1/L2), and lines are prefetched into L2 well ahead, one per inner step. Rows go four at a
// time: their four dot products share one transposing reduction, whose tree is the same for each
// row, so where a quad begins does not matter. V is added strictly row by row, O travels through L1
// once per quad. The passes over K and over V each depend on one element type only and are chosen
// from a table, so pairs of types cost no code. Elements are widened in registers, once for all
// heads of the pass. Cost: 2 * rows * (head_dim_k + head_dim_v) FLOPs per query.
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

constexpr std::ptrdiff_t kPrefetchL2Bytes = 12 * 1024;  // 4 to 24 KB ahead measured alike
constexpr std::ptrdiff_t kPrefetchL1Bytes = 1024;
constexpr int kSubGroup = 4;  // heads per pass over the block
constexpr std::int64_t kScoreStride = kDecodeBlockMax;

// Half vectors on AVX-512, where mixing wide ones into a pass of short ones slows that down.
#if HWY_TARGET == HWY_AVX3
using ShortTag = hn::Half<FloatTag>;
#else
using ShortTag = FloatTag;
#endif
using ShortVec = hn::Vec<ShortTag>;

/// Four row pointers at a time from a list of runs; the last row is repeated when less than four
/// are left.
class QuadWalker {
 public:
  QuadWalker(const KeyValueRun* runs, bool keys, std::size_t row_bytes)
      : run_(runs), keys_(keys), row_bytes_(row_bytes) {
    open();
  }

  HWY_INLINE void next(const std::byte* rows[4], std::int64_t n_left) {
    if (left_ >= 4) {
      for (std::size_t j = 0; j < 4; ++j) rows[j] = row_ + j * row_bytes_;
      row_ += 4 * row_bytes_;
      left_ -= 4;
      return;
    }
    next_across_runs(rows, n_left);
  }

 private:
  void open() {
    row_ = keys_ ? run_->k : run_->v;
    left_ = run_->n;
  }
  HWY_NOINLINE void next_across_runs(const std::byte* rows[4], std::int64_t n_left) {
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
      row_ += row_bytes_;
      --left_;
    }
  }

  const KeyValueRun* run_;
  bool keys_;
  std::size_t row_bytes_;
  const std::byte* row_ = nullptr;
  std::int64_t left_ = 0;
};

/// NR rows read side by side, a chunk (a vector, or a block with its scale) of each at a time.
template <class DF, ElementType E, int NR>
class RowGroup {
 public:
  static constexpr std::int64_t kChunk = chunk_elements<DF, E>();

  explicit HWY_INLINE RowGroup(const std::byte* const* rows) : rows_(rows) {}

  /// Goes to the chunk that begins with element i.
  HWY_INLINE void open(std::int64_t i) {
    at_ = byte_of<E>(i);
    if constexpr (is_block_quantized(E)) {
#pragma GCC unroll 4
      for (int r = 0; r < NR; ++r) scale_[r] = load_scale(DF(), rows_[r] + at_);
    }
  }
  /// Elements [x, x + lanes) of row r's chunk.
  HWY_INLINE hn::Vec<DF> load(int r, std::int64_t x) const {
    if constexpr (is_block_quantized(E)) {
      return load_quants<E>(DF(), rows_[r] + at_, x, scale_[r]);
    } else {
      return load_plain<E>(DF(), rows_[r] + at_);
    }
  }
  /// The same in a last chunk of only n elements.
  HWY_INLINE hn::Vec<DF> load_last(int r, std::int64_t x, std::int64_t n) const {
    if constexpr (is_block_quantized(E)) {
      return load(r, x);
    } else {
      return load_tail<E>(DF(), rows_[r] + at_, n);
    }
  }

 private:
  const std::byte* const* rows_;
  std::int64_t at_ = 0;
  hn::Vec<DF> scale_[is_block_quantized(E) ? NR : 1];
};

#if HWY_TARGET != HWY_SCALAR
/// Sum of the 128-bit blocks of v.
template <class DF>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> fold_to_four(DF d, hn::Vec<DF> v) {
  if constexpr (hn::MaxLanes(DF()) == 4) {
    return v;
  } else {
    const hn::Half<decltype(d)> half;
    return fold_to_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

/// out[0..4) = the lane sums of a, b, c, d, all by the same tree.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE void store_sums(HWY_MAYBE_UNUSED DF d, V a, V b, V c, V e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(e);
#else
  const hn::RepartitionToWide<DF> dw;
  const hn::Vec<DF> ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const hn::Vec<DF> ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto wide_ab = hn::BitCast(dw, ab);
  const auto wide_ce = hn::BitCast(dw, ce);
  const hn::Vec<DF> sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, wide_ab, wide_ce)),
                                   hn::BitCast(d, hn::InterleaveUpper(dw, wide_ab, wide_ce)));
  // Each 128-bit block now holds partial sums of all four; fold the blocks.
  const auto folded = fold_to_four(d, sums);
  hn::StoreU(folded, hn::FixedTag<float, 4>(), out);
#endif
}

/// Prefetches lines [begin, end) of what lies ahead of `here`: far into L2, near into L1.
HWY_INLINE void prefetch_lines(const std::byte* here, std::int64_t begin, std::int64_t end) {
#pragma GCC unroll 4
  for (std::int64_t line = begin; line < end; line += 64) {
    __builtin_prefetch(here + kPrefetchL2Bytes + line, 0, 2);
    __builtin_prefetch(here + kPrefetchL1Bytes + line, 0, 3);
  }
}

/// The share of row r in the prefetching of a step that reads one chunk of each of NR rows from
/// element i on: one line at a time between the loads, because bursts cost speed. The address is a
/// plain multiple of i: other forms of the same addresses measured down to 0.7 of the speed.
template <class DF, ElementType E, int NR>
HWY_INLINE void prefetch_for_row(const std::byte* first_row, std::int64_t i, std::int64_t r) {
  constexpr std::int64_t kRow = chunk_bytes<DF, E>();
  const std::byte* here = first_row + NR * byte_of<E>(i);
  prefetch_lines(here, (r * kRow + 63) / 64 * 64, (r + 1) * kRow);
}

/// acc[h][r] += q[h] * load(r), one vector of each.
template <class DF, int NH, int NR, class Load>
HWY_INLINE void multiply_vector(const float* q, std::ptrdiff_t q_stride, Load load,
                                hn::Vec<DF> (&acc)[NH][NR]) {
  const DF d;
  hn::Vec<DF> query[NH];
#pragma GCC unroll 4
  for (int h = 0; h < NH; ++h) query[h] = hn::Load(d, q + h * q_stride);
#pragma GCC unroll 4
  for (int r = 0; r < NR; ++r) {
    const hn::Vec<DF> key = load(r);
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h) acc[h][r] = hn::MulAdd(key, query[h], acc[h][r]);
  }
}

/// Dot products of NH queries with NR rows, accumulated lane by lane.
template <class DF, ElementType E, int NH, int NR, bool kPrefetch>
HWY_INLINE void accumulate_dots(const float* q, std::ptrdiff_t q_stride,
                                const std::byte* const* rows, std::int64_t dim,
                                hn::Vec<DF> (&acc)[NH][NR]) {
  using Group = RowGroup<DF, E, NR>;
  constexpr std::int64_t kStep = lanes<DF>();
  Group group(rows);
  std::int64_t i = 0;
  for (; i + Group::kChunk <= dim; i += Group::kChunk) {
    group.open(i);
#pragma GCC unroll 8
    for (std::int64_t x = 0; x < Group::kChunk; x += kStep) {
      const auto load = [&](int r) HWY_ATTR {
        if (kPrefetch && x == 0) prefetch_for_row<DF, E, NR>(rows[0], i, r);
        return group.load(r, x);
      };
      multiply_vector<DF, NH, NR>(q + i + x, q_stride, load, acc);
    }
  }
  if (i < dim) group.open(i);
  for (std::int64_t x = 0; i + x < dim; x += kStep) {
    multiply_vector<DF, NH, NR>(
        q + i + x, q_stride, [&](int r) HWY_ATTR { return group.load_last(r, x, dim - i); }, acc);
  }
}

template <class DF, ElementType E, int NH, bool kPrefetch>
HWY_INLINE void score_quad(const float* q, std::ptrdiff_t q_stride, const std::byte* const* rows,
                           std::int64_t dim, float* s) {
  const DF d;
  // 16 registers hold 3 x 4 accumulators with their operands; 4 heads go two rows at a time there.
  if constexpr (NH <= 3 || HWY_TARGET == HWY_AVX3) {
    hn::Vec<DF> acc[NH][4];
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) acc[h][r] = hn::Zero(d);
    }
    accumulate_dots<DF, E, NH, 4, kPrefetch>(q, q_stride, rows, dim, acc);
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h)
      store_sums(d, acc[h][0], acc[h][1], acc[h][2], acc[h][3], s + h * kScoreStride);
  } else {
    for (int r = 0; r < 4; r += 2) {
      hn::Vec<DF> acc[NH][2];
#pragma GCC unroll 4
      for (int h = 0; h < NH; ++h) acc[h][0] = acc[h][1] = hn::Zero(d);
      accumulate_dots<DF, E, NH, 2, kPrefetch>(q, q_stride, rows + r, dim, acc);
#pragma GCC unroll 4
      for (int h = 0; h < NH; h += 2) {
        HWY_ALIGN float sums[4];
        store_sums(d, acc[h][0], acc[h][1], acc[h + 1][0], acc[h + 1][1], sums);
        for (int j = 0; j < 4; ++j) s[(h + j / 2) * kScoreStride + r + j % 2] = sums[j];
      }
    }
  }
}

template <class DF, ElementType E, int NH, bool kPrefetch>
void score_rows(const DecodeBlock& block, int first, std::int64_t n, float* s) {
  const float* q = block.q + first * block.q_stride;
  QuadWalker walker(block.runs, true, row_bytes(E, block.head_dim_k));
  for (std::int64_t t = 0; t < n; t += 4) {
    const std::byte* rows[4];
    walker.next(rows, n - t);
    score_quad<DF, E, NH, kPrefetch>(q, block.q_stride, rows, block.head_dim_k, s + t);
  }
}

/// Turns n scores of query `row` into weights 2^(s - m) in place and updates its m, d and the scale
/// of its o. `s` has room for n rounded up to whole vectors.
inline void block_softmax(const DecodeBlock& block, int row, std::int64_t n, float* s) {
  float& m = block.m[row];
  float& d_sum = block.d[row];
  float* o = block.o + row * block.o_stride;
  const float cap_log2 = block.cap_log2;
  const ShortTag d;
  constexpr std::int64_t kStep = lanes<ShortTag>();
  const std::int64_t padded = (n + kStep - 1) / kStep * kStep;
  for (std::int64_t t = n; t < padded; ++t)
    s[t] = s[n - 1];  // repeats change no maximum; their weights are cleared below
  ShortVec largest = hn::Set(d, -FLT_MAX);
  ShortVec poison = hn::Zero(d);
  for (std::int64_t t = 0; t < padded; t += kStep) {
    ShortVec x = hn::Load(d, s + t);
    poison = hn::MulAdd(x, hn::Zero(d), poison);  // NaN if any score is NaN or infinite
    if (cap_log2 > 0.0f) {
      x = hn::Mul(hn::Set(d, cap_log2), tanh(d, x));
      hn::Store(x, d, s + t);
    }
    largest = hn::Max(largest, x);
  }
  const float block_max = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (block_max > m) {
    const float shrink = exp2f(m - block_max);
    d_sum *= shrink;
    m = block_max;
    const ShortVec factor = hn::Set(d, shrink);
    for (std::int64_t i = 0; i < block.head_dim_v; i += kStep)
      hn::Store(hn::Mul(hn::Load(d, o + i), factor), d, o + i);
  }
  ShortVec sum = poison;
  const ShortVec shift = hn::Set(d, m);
  std::int64_t t = 0;
  for (; t + kStep <= n; t += kStep) {
    const ShortVec weight = exp2_nonpositive(d, hn::Sub(hn::Load(d, s + t), shift));
    hn::Store(weight, d, s + t);
    sum = hn::Add(sum, weight);
  }
  if (t < n) {
    const ShortVec weight =
        hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n - t)),
                           exp2_nonpositive(d, hn::Sub(hn::Load(d, s + t), shift)));
    hn::Store(weight, d, s + t);
    sum = hn::Add(sum, weight);
  }
  d_sum += hn::GetLane(hn::SumOfLanes(d, sum));
}

/// o[h] += sum_r weight[h][r] * load(r), row after row, one vector of each.
template <class DF, int NH, int NR, class Load>
HWY_INLINE void add_vector(const hn::Vec<DF> (&weight)[NH][NR], Load load, float* o,
                           std::ptrdiff_t o_stride) {
  const DF d;
  hn::Vec<DF> sum[NH];
#pragma GCC unroll 4
  for (int h = 0; h < NH; ++h) sum[h] = hn::Load(d, o + h * o_stride);
#pragma GCC unroll 4
  for (int r = 0; r < NR; ++r) {
    const hn::Vec<DF> value = load(r);
#pragma GCC unroll 4
    for (int h = 0; h < NH; ++h) sum[h] = hn::MulAdd(weight[h][r], value, sum[h]);
  }
#pragma GCC unroll 4
  for (int h = 0; h < NH; ++h) hn::Store(sum[h], d, o + h * o_stride);
}

/// o[h] += sum_r p[h][r] * rows[r].
template <class DF, ElementType E, int NH, int NR, bool kPrefetch>
HWY_INLINE void add_rows(const float* p, const std::byte* const* rows, std::int64_t dim, float* o,
                         std::ptrdiff_t o_stride) {
  using Group = RowGroup<DF, E, NR>;
  constexpr std::int64_t kStep = lanes<DF>();
  hn::Vec<DF> weight[NH][NR];
#pragma GCC unroll 4
  for (int h = 0; h < NH; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) weight[h][r] = hn::Set(DF(), p[h * kScoreStride + r]);
  }
  Group group(rows);
  std::int64_t i = 0;
  for (; i + Group::kChunk <= dim; i += Group::kChunk) {
    group.open(i);
#pragma GCC unroll 8
    for (std::int64_t x = 0; x < Group::kChunk; x += kStep) {
      const auto load = [&](int r) HWY_ATTR {
        if (kPrefetch && x == 0) prefetch_for_row<DF, E, NR>(rows[0], i, r);
        return group.load(r, x);
      };
      add_vector<DF, NH, NR>(weight, load, o + i + x, o_stride);
    }
  }
  if (i < dim) group.open(i);
  for (std::int64_t x = 0; i + x < dim; x += kStep) {
    add_vector<DF, NH, NR>(
        weight, [&](int r) HWY_ATTR { return group.load_last(r, x, dim - i); }, o + i + x,
        o_stride);
  }
}

template <class DF, ElementType E, int NH, bool kPrefetch>
void weigh_rows(const DecodeBlock& block, int first, std::int64_t n, float* s) {
  float* o = block.o + first * block.o_stride;
  QuadWalker walker(block.runs, false, row_bytes(E, block.head_dim_v));
  for (std::int64_t t = 0; t < n; t += 4) {
    const std::byte* rows[4];
    walker.next(rows, n - t);
    if constexpr (NH <= 3 || HWY_TARGET == HWY_AVX3) {
      add_rows<DF, E, NH, 4, kPrefetch>(s + t, rows, block.head_dim_v, o, block.o_stride);
    } else {
      add_rows<DF, E, NH, 2, kPrefetch>(s + t, rows, block.head_dim_v, o, block.o_stride);
      add_rows<DF, E, NH, 2, kPrefetch>(s + t + 2, rows + 2, block.head_dim_v, o, block.o_stride);
    }
  }
}

/// One pass over the n rows of a block for up to kSubGroup queries from `first` on: scores into s
/// [kSubGroup, kScoreStride], or weights in s into the block's o.
using RowPass = void (*)(const DecodeBlock& block, int first, std::int64_t n, float* s);

/// The passes of one element type for 1 to kSubGroup queries.
struct RowPasses {
  RowPass score[kSubGroup];
  RowPass weigh[kSubGroup];
};

template <class DF, ElementType E, bool kPrefetch>
constexpr RowPasses kRowPasses = {
    {score_rows<DF, E, 1, kPrefetch>, score_rows<DF, E, 2, kPrefetch>,
     score_rows<DF, E, 3, kPrefetch>, score_rows<DF, E, 4, kPrefetch>},
    {weigh_rows<DF, E, 1, kPrefetch>, weigh_rows<DF, E, 2, kPrefetch>,
     weigh_rows<DF, E, 3, kPrefetch>, weigh_rows<DF, E, 4, kPrefetch>}};

template <class DF, bool kPrefetch>
const RowPasses& row_passes_of(ElementType type) {
  return *with_type(type, [](auto e) HWY_ATTR { return &kRowPasses<DF, e(), kPrefetch>; });
}

/// The passes for rows of `dim` elements and `count` queries. Full vectors are faster out of L2,
/// but where memory is the limit half ones measured up to 1.4 times faster on AVX-512; they also
/// spend less on the reduction of short rows. Block types are bound by their widening.
template <bool kPrefetch>
const RowPasses& row_passes(ElementType type, int dim, int count) {
  if (!is_block_quantized(type) && (dim < 128 || count <= 2))
    return row_passes_of<ShortTag, kPrefetch>(type);
  return row_passes_of<FloatTag, kPrefetch>(type);
}

template <bool kPrefetch>
void attend_sub_group(const DecodeBlock& block, int first, int count, std::int64_t n) {
  HWY_ALIGN float s[kSubGroup * kScoreStride];
  row_passes<kPrefetch>(block.k_type, block.head_dim_k, count).score[count - 1](block, first, n, s);
  for (int h = 0; h < count; ++h) {
    float* scores = s + h * kScoreStride;
    block_softmax(block, first + h, n, scores);
    for (std::int64_t t = n; t % 4 != 0; ++t)
      scores[t] = 0.0f;  // rows repeated to fill a quad; beyond a vector on scalar
  }
  row_passes<kPrefetch>(block.v_type, block.head_dim_v, count).weigh[count - 1](block, first, n, s);
}

// Not noexcept: the dispatch table holds plain function types; the public wrapper is.
/// Even parts of at most kSubGroup queries: 5 heads go as 3 + 2, not 4 + 1. Only the first part
/// reads from memory.
inline void decode_block(const DecodeBlock& block) {
  std::int64_t n = 0;
  for (int r = 0; r < block.n_runs; ++r) n += block.runs[r].n;
  if (n == 0) return;
  int first = 0;
  for (int parts = (block.n_queries + kSubGroup - 1) / kSubGroup; parts > 0; --parts) {
    const int count = (block.n_queries - first + parts - 1) / parts;
    if (first == 0) {
      attend_sub_group<true>(block, first, count, n);
    } else {
      attend_sub_group<false>(block, first, count, n);
    }
    first += count;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_ATTEND_DECODE_INL_H_
