// Invariant: theta and turns belong together, the latter rounded from 113 bits. Cost: O(bands).
#include "rope/frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "rope/wide.hpp"

namespace volvelle {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

Error invalid(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "rotary positions: " + what};
}

bool is_positive(double x) { return std::isfinite(x) && x > 0.0; }

Status check(const RotaryConfig& c) {
  if (c.rotated_dims < 2 || c.rotated_dims % 2 != 0 || c.rotated_dims > 8192)
    return invalid("expected an even number of rotated dimensions, got " +
                   std::to_string(c.rotated_dims));
  if (!is_positive(c.base) || c.base <= 1.0)
    return invalid("expected a base above 1, got " + std::to_string(c.base));
  const bool scaled = c.scaling != BandScaling::kNone;
  if (scaled && !is_positive(c.factor))
    return invalid("expected a positive scaling factor, got " + std::to_string(c.factor));
  const bool needs_dims = c.scaling == BandScaling::kNtk || c.scaling == BandScaling::kDynamicNtk;
  if (needs_dims && c.rotated_dims < 4) return invalid("NTK scaling needs 4 dimensions or more");
  const bool needs_context = c.scaling == BandScaling::kDynamicNtk ||
                             c.scaling == BandScaling::kLlama3 || c.scaling == BandScaling::kYarn;
  if (needs_context && c.original_context < 1)
    return invalid("the scaling needs the original context length");
  if (c.scaling == BandScaling::kLlama3 &&
      !(is_positive(c.low_factor) && c.high_factor > c.low_factor))
    return invalid("llama3 scaling needs 0 < low factor < high factor");
  if (c.scaling == BandScaling::kLongRope &&
      (std::ssize(c.divisors) != c.rotated_dims / 2 ||
       !std::all_of(c.divisors.begin(), c.divisors.end(), is_positive)))
    return invalid("LongRoPE needs a positive divisor for each of the " +
                   std::to_string(c.rotated_dims / 2) + " bands");
  return {};
}

/// base * factor^(d / (d - 2)): what linear scaling by `factor` does to the slowest band, by the
/// base alone.
Wide ntk_base(const RotaryConfig& c, double factor) {
  const int d = c.rotated_dims;
  // factor^(d / (d - 2)) = factor * factor^(2 / (d - 2))
  const auto f = static_cast<Wide>(factor);
  return static_cast<Wide>(c.base) * f * root(f * f, d - 2);
}

Wide base_of(const RotaryConfig& c) {
  if (c.scaling == BandScaling::kNtk) return ntk_base(c, c.factor);
  if (c.scaling == BandScaling::kDynamicNtk && c.length > c.original_context) {
    const double share = static_cast<double>(c.length) / static_cast<double>(c.original_context);
    return ntk_base(c, c.factor * share - (c.factor - 1.0));
  }
  return static_cast<Wide>(c.base);
}

/// Wavelengths below original / high keep their frequency, above original / low are divided.
Wide llama3(const RotaryConfig& c, Wide theta) {
  const auto context = static_cast<double>(c.original_context);
  const double wavelength = static_cast<double>(two_pi() / theta);
  if (wavelength < context / c.high_factor) return theta;
  const Wide divided = theta / static_cast<Wide>(c.factor);
  if (wavelength > context / c.low_factor) return divided;
  const Wide share =
      (static_cast<Wide>(context) * theta / two_pi() - static_cast<Wide>(c.low_factor)) /
      static_cast<Wide>(c.high_factor - c.low_factor);
  return (1 - share) * divided + share * theta;
}

/// Share of the divided frequency in band b.
double yarn_ramp(const RotaryConfig& c, int band) {
  const auto dim_of = [&](double turns) {
    return c.rotated_dims * std::log(static_cast<double>(c.original_context) / (turns * kTwoPi)) /
           (2.0 * std::log(c.base));
  };
  const double low = std::max(std::floor(dim_of(c.beta_fast)), 0.0);
  double high = std::min(std::ceil(dim_of(c.beta_slow)), c.rotated_dims - 1.0);
  if (low == high) high += 0.001;
  return std::clamp((band - low) / (high - low), 0.0, 1.0);
}

Wide scaled(const RotaryConfig& c, int band, Wide theta) {
  const auto factor = static_cast<Wide>(c.factor);
  switch (c.scaling) {
    case BandScaling::kLinear:
      return theta / factor;
    case BandScaling::kLlama3:
      return llama3(c, theta);
    case BandScaling::kYarn: {
      const auto ramp = static_cast<Wide>(yarn_ramp(c, band));
      return theta * (1 - ramp) + theta / factor * ramp;
    }
    case BandScaling::kLongRope:
      return theta / static_cast<Wide>(c.divisors[static_cast<std::size_t>(band)]);
    case BandScaling::kNone:
    case BandScaling::kNtk:
    case BandScaling::kDynamicNtk:
      return theta;
  }
  return theta;
}

double attention_factor_of(const RotaryConfig& c) {
  if (c.attention_factor > 0.0) return c.attention_factor;
  if (c.scaling == BandScaling::kYarn && c.factor > 1.0) return 0.1 * std::log(c.factor) + 1.0;
  if (c.scaling == BandScaling::kLongRope && c.factor > 1.0 && c.original_context > 1)
    return std::sqrt(1.0 + std::log(c.factor) / std::log(static_cast<double>(c.original_context)));
  return 1.0;
}

}  // namespace

double BandFrequencies::angle(std::size_t b, std::uint64_t position) const noexcept {
  if (precision == AnglePrecision::kFloatAngles) {
    const float product = static_cast<float>(position) * static_cast<float>(theta[b]);
    return std::remainder(static_cast<double>(product), kTwoPi);
  }
  // Modulo 2^64 is modulo one turn.
  const auto turn = static_cast<std::int64_t>(turns[b] * position);
  return kTwoPi * std::ldexp(static_cast<double>(turn), -64);
}

double BandFrequencies::wavelength(std::size_t b) const noexcept { return kTwoPi / theta[b]; }

Result<BandFrequencies> band_frequencies(const RotaryConfig& config, AnglePrecision precision) {
  if (const Status sound = check(config); !sound.ok()) return sound.error();
  const int n_bands = config.rotated_dims / 2;
  const Wide ratio = 1 / root(base_of(config), n_bands);
  BandFrequencies result;
  result.precision = precision;
  result.attention_factor = attention_factor_of(config);
  result.stationary = config.scaling != BandScaling::kDynamicNtk;
  for (int band = 0; band < n_bands; ++band) {
    Wide theta = scaled(config, band, power(ratio, band));
    if (precision != AnglePrecision::kIdeal) theta = static_cast<Wide>(static_cast<float>(theta));
    result.theta.push_back(static_cast<double>(theta));
    result.turns.push_back(turns_of(theta));
  }
  return result;
}

}  // namespace volvelle
