// The bivariate normal integral by composite Simpson, and the two margin bounds.
#include "index/recall_law.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace volvelle {

double normal_upper_tail(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }

double normal_upper_quantile(double p) {
  double low = -40.0;
  double high = 40.0;
  for (int i = 0; i < 200; ++i) {  // the tail falls from 1 to 0
    const double middle = (low + high) / 2.0;
    (normal_upper_tail(middle) > p ? low : high) = middle;
  }
  return (low + high) / 2.0;
}

double predicted_recall(double rho, double p) {
  if (!(p > 0.0) || p >= 1.0 || !(rho > 0.0)) return 1.0;
  if (rho >= 1.0) return p;
  const double z = normal_upper_quantile(1.0 - p) * -1.0;
  const double keep = std::sqrt(1.0 - rho);
  const double noise = std::sqrt(rho);
  constexpr int kSteps = 4000;
  const double width = 12.0 / kSteps;  // the density is nothing beyond z + 12
  double sum = 0.0;
  for (int i = 0; i <= kSteps; ++i) {
    const double x = z + i * width;
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    const double weight = i == 0 || i == kSteps ? 1.0 : i % 2 == 1 ? 4.0 : 2.0;
    sum += weight * density * normal_upper_tail((z - x * keep) / noise);
  }
  return std::clamp(sum * width / 3.0 / p, p, 1.0);
}

double missed_bound_cantelli(std::span<const double> margins, std::span<const double> variances,
                             double k) {
  double sum = 0.0;
  for (std::size_t j = 0; j < margins.size(); ++j) {
    const double square = margins[j] * margins[j];
    sum += variances[j] > 0.0 ? variances[j] / (variances[j] + square) : 0.0;
  }
  return sum / k;
}

double missed_bound_subgaussian(std::span<const double> margins, std::span<const double> variances,
                                double k) {
  double sum = 0.0;
  for (std::size_t j = 0; j < margins.size(); ++j) {
    if (!(variances[j] > 0.0)) continue;
    sum += std::exp(-margins[j] * margins[j] / (2.0 * variances[j]));
  }
  return sum / k;
}

}  // namespace volvelle
