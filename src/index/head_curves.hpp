// Measured behaviour of one head on a text: its mean logits by distance, and what it attends to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/codec_study.hpp"
#include "index/head_bands.hpp"

namespace volvelle {

/// Logits of late queries by distance, keys behind the sinks.
struct LogitCurve {
  std::vector<double> mean;      // [max_distance], at distance i + 1
  std::vector<double> variance;  // of single logits around it
  std::int64_t n = 0;            // queries
};
/// Cost: (n - max_distance) x max_distance products of rows.
LogitCurve logit_curve(const HeadSample& sample, int g, std::int64_t max_distance);

struct HeadHabits {
  double induction_z =
      0.0;                 // standard deviations of a query's logits by which its target stands out
  double sink_mass = 0.0;  // attention on the first four tokens
  double key_rank = 0.0;   // exponential of the entropy of the spectrum of the keys' covariance
};
/// targets: for each position a place before it, or -1.
HeadHabits head_habits(const HeadSample& sample, int g, std::span<const std::int64_t> targets);

}  // namespace volvelle
