// What a model's configuration alone says of distances: how fast addresses are forgotten, and the
// distances and positions that look alike (RoAM, sections on the address kernel and on aliases).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "rope/address_kernel.hpp"
#include "rope/frequencies.hpp"

namespace volvelle {

/// Where the slowest bands are all back at once.
struct JointReturn {
  int n_slowest = 0;
  double tolerance = 0.0;     // radians
  std::int64_t distance = 0;  // 0: none up to kJointReturnLimit
};
inline constexpr std::int64_t kJointReturnLimit = 1'000'000'000;

struct RotaryFacts {
  std::vector<double> wavelengths;  // [n_bands]
  std::int64_t band_alias = 0;      // of the slowest band
  KernelAlias kernel_alias;         // up to `length`
  std::vector<std::int64_t>
      crossings;  // where the kernel first falls below .75, .5, .25, 0; -1: nowhere
  std::vector<double> address_capacity;    // at distances 64, 512, 4096, failure probability .05
  std::vector<JointReturn> joint_returns;  // of the 1 to 4 slowest bands that turn
};
RotaryFacts rotary_facts(const BandFrequencies& bands, std::int64_t length);

/// Number types in which positions may be held.
inline constexpr std::array<const char*, 3> kPositionTypes{"bf16", "f16", "f32"};

}  // namespace volvelle
