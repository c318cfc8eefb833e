// The rotation of RoPE, undone by whole blocks. Angles are floats and everything that is turned
// uses the same ones, so scores do not change, however rough they are.
#include "index/block_frame.hpp"

#include <cmath>
#include <string>

namespace volvelle {
void BlockFrame::turn_back(std::int64_t position, float* row) const noexcept {
  for (std::ptrdiff_t i = 0; i < std::ssize(angles); ++i) {
    const double angle =
        static_cast<double>(angles[static_cast<std::size_t>(i)]) * static_cast<double>(position);
    turn_pair_back(*this, i, static_cast<float>(std::cos(angle)),
                   static_cast<float>(std::sin(angle)), row);
  }
}

Result<BlockFrame> make_block_frame(const RopeConfig& rope) {
  const bool pairs =
      rope.layout == RopeLayout::kAdjacentPairs || rope.layout == RopeLayout::kHalfSplit;
  const bool plain = rope.scaling == RopeScaling::kNone || rope.scaling == RopeScaling::kLinear;
  if (!pairs || !plain || rope.frequency_factors || rope.rotated_dims < 2) {
    return Error{ErrorCode::kUnsupported,
                 "index: anchor=block needs plain rotary positions, this model has '" +
                     rope.describe() + "'; leave anchor out"};
  }
  BlockFrame frame;
  // Smaller blocks gain a little more, blocks of 1,024 lose half of what there is
  // (docs/benchmarks.md).
  frame.block = BlockFrame::kPositions;
  frame.half_split = rope.layout == RopeLayout::kHalfSplit;
  const double scale = rope.scaling == RopeScaling::kLinear ? rope.scale_factor : 1.0;
  for (int i = 0; i < rope.rotated_dims / 2; ++i) {
    frame.angles.push_back(
        static_cast<float>(std::pow(rope.freq_base, -2.0 * i / rope.rotated_dims) / scale));
  }
  return frame;
}

}  // namespace volvelle
