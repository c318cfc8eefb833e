// Decode rungs below the library's kernel. They share its softmax, so the ladder isolates the walk
// over rows.
#include "ladders.hpp"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "decode_ladder.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/attend_decode-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

constexpr ElementType kHalf = ElementType::kF16;

/// d1: one query, one row, one horizontal sum at a time; V in columns of one vector. f16, whole
/// vectors, one run.
void one_row_at_a_time(const DecodeBlock& block) {
  const FloatTag d;
  const std::byte* k = block.runs[0].k;
  const std::byte* v = block.runs[0].v;
  const std::int64_t n = block.runs[0].n;
  HWY_ALIGN float s[kScoreStride];
  for (int row = 0; row < block.n_queries; ++row) {
    const float* q = block.q + row * block.q_stride;
    for (std::int64_t t = 0; t < n; ++t) {
      FloatVec sum = hn::Zero(d);
      for (std::int64_t i = 0; i < block.head_dim_k; i += kLanes) {
        sum = hn::MulAdd(load_plain<kHalf>(d, k + 2 * (t * block.head_dim_k + i)),
                         hn::Load(d, q + i), sum);
      }
      s[t] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
    block_softmax(block, row, n, s);
    float* o = block.o + row * block.o_stride;
    for (std::int64_t i = 0; i < block.head_dim_v; i += kLanes) {
      FloatVec sum = hn::Load(d, o + i);
      for (std::int64_t t = 0; t < n; ++t) {
        sum = hn::MulAdd(hn::Set(d, s[t]), load_plain<kHalf>(d, v + 2 * (t * block.head_dim_v + i)),
                         sum);
      }
      hn::Store(sum, d, o + i);
    }
  }
}

/// d2: the library's kernel without prefetch.
void four_rows_without_prefetch(const DecodeBlock& block) {
  std::int64_t n = 0;
  for (int r = 0; r < block.n_runs; ++r) n += block.runs[r].n;
  int first = 0;
  for (int parts = (block.n_queries + kSubGroup - 1) / kSubGroup; parts > 0; --parts) {
    const int count = (block.n_queries - first + parts - 1) / parts;
    attend_sub_group<false>(block, first, count, n);
    first += count;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(one_row_at_a_time);
HWY_EXPORT(four_rows_without_prefetch);

namespace bench {
namespace {
void d1(const DecodeBlock& block) { HWY_DYNAMIC_DISPATCH(one_row_at_a_time)(block); }
void d2(const DecodeBlock& block) { HWY_DYNAMIC_DISPATCH(four_rows_without_prefetch)(block); }
void d3(const DecodeBlock& block) { attend_decode_block(block); }
}  // namespace

std::vector<DecodeRung> decode_rungs() {
  return {{"d1 row by row", d1, true}, {"d2 four rows", d2}, {"d3 + prefetch (library)", d3}};
}

}  // namespace bench
}  // namespace volvelle
#endif  // HWY_ONCE
