// Turning rows back by the middle of a block, with its cosines and sines at hand.
#pragma once

#include <cstddef>
#include <iterator>

#include "volvelle/index/code_index.hpp"

namespace volvelle {

/// Turns pair i of a row back by the angle with cosine c and sine s.
inline void turn_pair_back(const BlockFrame& frame, std::ptrdiff_t i, float c, float s,
                           float* row) noexcept {
  float& x = frame.half_split ? row[i] : row[2 * i];
  float& y = frame.half_split ? row[i + std::ssize(frame.angles)] : row[2 * i + 1];
  const float turned = c * x + s * y;
  y = c * y - s * x;
  x = turned;
}

/// rotation: cosines, then sines, as CodeIndex::rotation() has them.
inline void turn_row_back(const BlockFrame& frame, const float* rotation, float* row) noexcept {
  const auto n = std::ssize(frame.angles);
  for (std::ptrdiff_t i = 0; i < n; ++i)
    turn_pair_back(frame, i, rotation[i], rotation[n + i], row);
}

}  // namespace volvelle
