// At least k values reach the k-th largest block maximum, so smaller ones are no candidates.
#include "index/select.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>

namespace volvelle {

namespace {

/// A value that at least k of the n values reach, close to the k-th largest: the lower edge of its
/// bucket. Buckets are the leading bits of the number: eight to a factor of two.
float reached_by(const float* values, std::int64_t n, std::int64_t k) noexcept {
  constexpr int kShift = 20;
  constexpr std::size_t kBuckets = 128 * 8;  // of the exponents up to 1; larger ones share the last
  std::int32_t counts[kBuckets] = {};
  const auto bucket_of = [](float x) {
    const auto bits = std::bit_cast<std::uint32_t>(std::max(x, 0.0f));
    return std::min<std::size_t>(bits >> kShift, kBuckets - 1);
  };
  for (std::int64_t i = 0; i < n; ++i) ++counts[bucket_of(values[i])];
  std::size_t bucket = kBuckets - 1;
  for (std::int64_t above = counts[bucket]; above < k && bucket > 0; above += counts[bucket])
    --bucket;
  return std::bit_cast<float>(static_cast<std::uint32_t>(bucket) << kShift);
}

/// Keeps the k largest of `count` ascending candidates, in their order.
std::int64_t keep_largest(const float* values, std::int32_t* candidates, std::int64_t count,
                          std::int64_t k, float* scratch) noexcept {
  for (std::int64_t i = 0; i < count; ++i) scratch[i] = values[candidates[i]];
  std::nth_element(scratch, scratch + (k - 1), scratch + count, std::greater<>());
  const float least = scratch[k - 1];
  std::int64_t ties = k - std::count_if(candidates, candidates + count,
                                        [&](std::int32_t i) { return values[i] > least; });
  // Of equal values the last ones stay, so go backwards.
  std::int64_t to = count;
  for (std::int64_t i = count - 1; i >= 0; --i) {
    const float value = values[candidates[i]];
    if (value > least || (value == least && ties-- > 0)) candidates[--to] = candidates[i];
  }
  std::copy(candidates + to, candidates + count, candidates);
  return k;
}

}  // namespace

std::int64_t select_largest(const float* values, const float* block_max, std::int64_t n,
                            std::int64_t k, std::int32_t* candidates, float* scratch) noexcept {
  const std::int64_t n_blocks = n / kSelectBlock;
  float least = 0.0f;
  if (k < n_blocks) {
    least = reached_by(block_max, n_blocks, k);
  }
  const std::int64_t count = collect_at_least(values, block_max, n_blocks, least, candidates);
  return count <= k ? count : keep_largest(values, candidates, count, k, scratch);
}

}  // namespace volvelle
