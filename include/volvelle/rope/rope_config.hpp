// How a model rotates queries and keys (rotary position embedding). Keys are stored after rotation,
// so a memory is only good for the configuration that made it: the one-line description is stored
// in memory files and compared.
#pragma once

#include <cstdint>
#include <string>

namespace volvelle {

enum class RopeLayout {
  kNone,
  kAdjacentPairs,
  kHalfSplit,
  kOther
};  // pairs (2i, 2i+1), or (i, i + n/2)
enum class RopeScaling { kNone, kLinear, kYarn, kLongRope };

struct RopeConfig {
  RopeLayout layout = RopeLayout::kNone;
  RopeScaling scaling = RopeScaling::kNone;
  int rotated_dims = 0;  // of head_dim_k
  double freq_base = 10000.0;
  double scale_factor = 1.0;
  std::int64_t original_context = 0;
  bool frequency_factors = false;  // a rope_freqs tensor (llama3 scaling)
  bool operator==(const RopeConfig&) const = default;

  /// One line, stable: goes into files and is compared with them.
  std::string describe() const;
};

}  // namespace volvelle
