// At least k values reach the k-th largest block maximum, so smaller ones are no candidates.
#include "index/select.hpp"

#include <algorithm>
#include <functional>

namespace volvelle {

std::int64_t select_largest(const float* values, const float* block_max, std::int64_t n,
                            std::int64_t k, std::int32_t* candidates, float* maxima) noexcept {
  const std::int64_t n_blocks = n / kSelectBlock;
  float least = 0.0f;
  if (k < n_blocks) {
    std::copy_n(block_max, n_blocks, maxima);
    std::nth_element(maxima, maxima + k - 1, maxima + n_blocks, std::greater<float>());
    least = maxima[k - 1];
  }
  std::int64_t count = 0;
  for (std::int64_t block = 0; block < n_blocks; ++block) {
    if (!(block_max[block] >= least) || !(block_max[block] > 0.0f)) continue;
    const std::int64_t first = block * kSelectBlock;
    for (std::int64_t i = first; i < first + kSelectBlock; ++i) {
      candidates[count] = static_cast<std::int32_t>(i);
      count += values[i] >= least && values[i] > 0.0f ? 1 : 0;
    }
  }
  if (count > k) {
    const auto before = [&](std::int32_t a, std::int32_t b) {
      return values[a] != values[b] ? values[a] > values[b] : a > b;
    };
    std::nth_element(candidates, candidates + k, candidates + count, before);
    count = k;
  }
  std::sort(candidates, candidates + count);
  return count;
}

}  // namespace volvelle
