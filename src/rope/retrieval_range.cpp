// Closed forms, and searches that check them. Cost: searches are O(bands) for each distance.
#include "rope/retrieval_range.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace volvelle {
namespace {

double phase_of(const LogitBands& logits, std::size_t b) {
  return logits.phase.empty() ? 0.0 : logits.phase[b];
}

/// e^-gamma / theta at the band, counted from the slow end, where the amplitudes add up to the
/// threshold; inside a band's cell linear in ln theta.
double tail_law(const BandFrequencies& bands, const LogitBands& logits, double threshold) {
  const std::size_t n = bands.size();
  double sum = 0.0;
  for (std::size_t i = n; i-- > 0;) {
    const double amplitude = logits.amplitude[i] * std::cos(phase_of(logits, i));
    if (sum + amplitude < threshold) {
      sum += amplitude;
      continue;
    }
    const double next = i > 0
                            ? bands.theta[i - 1]
                            : bands.theta[i] * bands.theta[i] / bands.theta[std::min(i + 1, n - 1)];
    const double cell = std::log(next / bands.theta[i]);
    const double share = amplitude > 0.0 ? (threshold - sum) / amplitude : 0.0;
    const double at = std::log(bands.theta[i]) + cell * (share - 0.5);
    return std::exp(-std::numbers::egamma - at);
  }
  return 0.0;  // all bands together do not reach it
}

/// Average of mu over [D / 1.6, 1.6 D], evenly in ln D.
double smoothed_at(const BandFrequencies& bands, const LogitBands& logits, double distance) {
  constexpr int kSamples = 600;
  const double low = std::log(distance / 1.6);
  const double step = 2.0 * std::log(1.6) / (kSamples - 1);
  double sum = 0.0;
  for (int i = 0; i < kSamples; ++i) sum += logit_at(bands, logits, std::exp(low + step * i));
  return sum / kSamples;
}

/// For the S slowest bands cos(x + phi) >= cos phi (1 - x^2 / 2) - |sin phi| x, for the others -1:
/// a quadratic whose root is a distance; the best S.
double guaranteed_range(const BandFrequencies& bands, const LogitBands& logits, double threshold) {
  double fast = 0.0;
  for (const double a : logits.amplitude) fast += a;
  double best = 0.0;
  double constant = 0.0, linear = 0.0, square = 0.0;
  for (std::size_t i = bands.size(); i-- > 0;) {
    const double a = logits.amplitude[i];
    const double phi = phase_of(logits, i);
    const double theta = bands.theta[i];
    if (!(std::cos(phi) >= 0.0)) break;
    fast -= a;
    constant += a * std::cos(phi);
    linear += a * std::abs(std::sin(phi)) * theta;
    square += 0.5 * a * std::cos(phi) * theta * theta;
    const double spare = constant - fast - threshold;
    if (spare <= 0.0) continue;
    best =
        std::max(best, 2.0 * spare / (linear + std::sqrt(linear * linear + 4.0 * square * spare)));
  }
  return best;
}

std::int64_t hard_range(const BandFrequencies& bands, const LogitBands& logits, double threshold,
                        std::int64_t limit) {
  for (std::int64_t d = 1; d <= limit; ++d) {
    double mu = 0.0;
    for (std::size_t b = 0; b < bands.size(); ++b) {
      mu += logits.amplitude[b] *
            std::cos(bands.angle(b, static_cast<std::uint64_t>(d)) + phase_of(logits, b));
    }
    if (mu < threshold) return d - 1;
  }
  return limit;
}

/// ln Phi(z), for large z too.
double ln_normal(double z) { return std::log1p(-0.5 * std::erfc(z / std::numbers::sqrt2)); }

}  // namespace

double logit_at(const BandFrequencies& bands, const LogitBands& logits, double distance) {
  double mu = 0.0;
  for (std::size_t b = 0; b < bands.size(); ++b)
    mu += logits.amplitude[b] * std::cos(bands.theta[b] * distance + phase_of(logits, b));
  return mu;
}

RetrievalRange retrieval_range(const BandFrequencies& bands, const LogitBands& logits,
                               double threshold, std::int64_t limit) {
  RetrievalRange range;
  range.law = tail_law(bands, logits, threshold);
  range.guaranteed = guaranteed_range(bands, logits, threshold);
  range.hard = hard_range(bands, logits, threshold, limit);
  range.smoothed = static_cast<double>(limit);
  for (double d = 1.0; d < static_cast<double>(limit); d *= 1.01) {
    if (smoothed_at(bands, logits, d) >= threshold) continue;
    range.smoothed = d;
    break;
  }
  return range;
}

double argmax_capacity(double z, double delta) {
  const double none = ln_normal(z);
  return none < 0.0 ? std::log1p(-delta) / none : std::numeric_limits<double>::infinity();
}

double capacity_quantile(double n, double delta) {
  double low = -10.0, high = 40.0;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (argmax_capacity(middle, delta) < n ? low : high) = middle;
  }
  return (low + high) / 2;
}

double ln_softmax_capacity(double advantage, double sigma) {
  const double variance = sigma * sigma;
  return advantage >= variance ? advantage - variance / 2 : advantage * advantage / (2 * variance);
}

double address_capacity(double kernel, int n_bands, double delta) {
  return argmax_capacity(std::sqrt(2.0 * n_bands) * kernel, delta);
}

}  // namespace volvelle
