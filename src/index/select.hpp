// The largest of many numbers, by pruning whole blocks.
#pragma once

#include <cstdint>

#include "kernels/code_scan.hpp"

namespace volvelle {

/// Indices of the k largest of values[0, n) that are above zero, ascending; of equal values the one
/// with the larger index goes first. `block_max` holds the largest value of each kSelectBlock
/// values (n is a multiple of it). `candidates` and `scratch` have room for n each; the result
/// stands at the beginning of `candidates`. Returns how many there are. Cost: O(n / kSelectBlock)
/// and what lies above the k-th largest block.
std::int64_t select_largest(const float* values, const float* block_max, std::int64_t n,
                            std::int64_t k, std::int32_t* candidates, float* scratch) noexcept;

}  // namespace volvelle
