// Frequencies of the bands of a rotary position embedding, from its configuration, for every
// scaling that models use. Band b of a head turns by theta_b per position. (RoAM, section on
// frequencies; the scalings' own papers.) Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "volvelle/base/result.hpp"

namespace volvelle {

enum class BandScaling {
  kNone,
  kLinear,      // theta / factor
  kNtk,         // base * factor^(d / (d - 2))
  kDynamicNtk,  // the same with a factor that grows with the length
  kLlama3,      // slow bands divided by factor, fast ones kept, a ramp in between
  kYarn,        // the same with a ramp over bands, and a factor on the logits
  kLongRope,    // a divisor for each band
};

/// How exact an implementation's angles are. Integers that are said of a running model must use its
/// own.
enum class AnglePrecision {
  kIdeal,             // real numbers
  kFloatFrequencies,  // theta rounded to float, exact products
  kFloatAngles,       // and position * theta rounded to float
};

struct RotaryConfig {
  int rotated_dims = 0;  // d, even
  double base = 10000.0;
  BandScaling scaling = BandScaling::kNone;
  double factor = 1.0;
  std::int64_t original_context = 0;  // dynamic NTK, llama3, YaRN, LongRoPE
  std::int64_t length = 0;            // dynamic NTK, LongRoPE: tokens of the context
  double low_factor = 1.0;            // llama3
  double high_factor = 4.0;
  double beta_fast = 32.0;  // YaRN
  double beta_slow = 1.0;
  double attention_factor = 0.0;   // of cos and sin; 0: what the scaling says
  std::vector<double> divisors{};  // LongRoPE, [d / 2]
};

struct BandFrequencies {
  std::vector<double> theta;         // [n_bands], radians per position, fast bands first
  std::vector<std::uint64_t> turns;  // [n_bands]: round(2^64 theta / 2 pi)
  AnglePrecision precision = AnglePrecision::kIdeal;
  double attention_factor = 1.0;  // of queries and of keys; logits have its square
  bool stationary = true;         // false: frequencies depend on the length of the context
  std::size_t size() const noexcept { return theta.size(); }
  /// Angle of band b at a position, in [-pi, pi). Exact to 2^-64 position turns.
  double angle(std::size_t b, std::uint64_t position) const noexcept;
  /// Positions of a full turn.
  double wavelength(std::size_t b) const noexcept;
};

/// Fails by name on sizes and factors that make no sense.
Result<BandFrequencies> band_frequencies(const RotaryConfig& config,
                                         AnglePrecision precision = AnglePrecision::kIdeal);

}  // namespace volvelle
