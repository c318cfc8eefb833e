// Keys edited in the ways that caches are compressed, and vectors turned and rounded as kernels do.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bounds/edit_bound.hpp"
#include "eval/model_rotation.hpp"
#include "volvelle/base/element_type.hpp"

namespace volvelle {

/// Names of the edits: stored as q8_0 or q4_0, a quarter of the coordinates kept, pairs of
/// neighbours merged, one band of each key changed, stored as if each key stood 1 to 64 positions
/// later ("shift", as in a cache that is used again at other positions).
std::span<const char* const> edit_names() noexcept;
/// Keys [n, dim] edited in one of these ways but "shift", which needs the rotation. `bands`: of
/// edits of single bands, each key's. Fails on other names, and where low rank has no sound moments
/// (NaN).
Result<std::vector<float>> edited_keys(std::string_view edit, const BandLayout& layout,
                                       std::span<const float> keys, std::uint64_t seed,
                                       std::vector<int>& bands);

/// What edits did beside the keys, [n] each or nothing.
struct EditTrace {
  std::vector<int> bands;            // of edits of single bands
  std::vector<std::int64_t> shifts;  // positions of "shift"
};
/// The same for all edits.
Result<std::vector<float>> edited_keys(std::string_view edit, const RotationGroup& rotation,
                                       int dim, std::span<const float> keys, std::uint64_t seed,
                                       EditTrace& trace);
/// [n]: edit_of_shift of each of the keys [n, dim].
std::vector<BandEdit> shift_edits(const RotationGroup& rotation, int dim,
                                  std::span<const float> keys, std::span<const std::int64_t> shifts,
                                  double turn_error);

/// Rows [n, dim] as a storage type keeps them.
std::vector<float> through_type(std::span<const float> rows, int dim, ElementType type);

/// Where the bands of a head of this width lie.
inline BandLayout layout_of(const RotationGroup& rotation, int dim) {
  return {rotation.node.layout, dim, rotation.node.rotated_dims};
}

/// Turns the bands of a row by `by` positions with cosines and sines in float, or rounded to
/// bfloat16.
void turn_row(const RotationGroup& rotation, std::int64_t by, bool rounded, float* row);
void round_to_bfloat(std::span<float> values);

}  // namespace volvelle
