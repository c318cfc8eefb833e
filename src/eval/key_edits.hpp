// Keys edited in the ways that caches are compressed, and vectors turned and rounded as kernels do.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "bounds/edit_bound.hpp"
#include "eval/model_rotation.hpp"

namespace volvelle {

/// Names of the edits: stored as q8_0 or q4_0, a quarter of the coordinates kept, pairs of
/// neighbours merged, one band of each key changed.
std::span<const char* const> edit_names() noexcept;
/// Keys [n, dim] edited in one of these ways. `bands`: of edits of single bands, each key's.
/// Fails where low rank has no sound moments (NaN).
Result<std::vector<float>> edited_keys(std::string_view edit, const BandLayout& layout,
                                       std::span<const float> keys, std::uint64_t seed,
                                       std::vector<int>& bands);

/// Turns the bands of a row by `by` positions with cosines and sines in float, or rounded to
/// bfloat16.
void turn_row(const RotationGroup& rotation, std::int64_t by, bool rounded, float* row);
void round_to_bfloat(std::span<float> values);

}  // namespace volvelle
