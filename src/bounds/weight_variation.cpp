// Each bound is rounded by a relative 1e-12 at most, far below what enters it.
#include "bounds/weight_variation.hpp"

#include <algorithm>
#include <cmath>

namespace volvelle {

double uniform_variation(double eps) { return std::tanh(eps / 2.0); }

double weighted_variation(std::span<const double> weights, std::span<const double> eps) {
  double largest = 0.0, sum = 0.0;
  for (std::size_t j = 0; j < eps.size(); ++j) {
    largest = std::max(largest, eps[j]);
    sum += weights[j] * eps[j];
  }
  if (!(largest > 0.0)) return 0.0;
  return std::expm1(2.0 * largest) / (2.0 * largest) * sum;
}

double two_level_variation(double small, double heavy, double large) {
  const double grown = heavy * std::exp(large);
  return std::tanh(small / 2.0) + std::max(heavy, grown / (1.0 - heavy + grown));
}

double evicted_share(std::int64_t n, double largest, double kept_log_sum) {
  if (n <= 0) return 0.0;
  // n e^U / (n e^U + Z), without overflow.
  return 1.0 / (1.0 + std::exp(kept_log_sum - largest - std::log(static_cast<double>(n))));
}

double output_change(double variation, double radius, double value_term) {
  return 2.0 * variation * radius + value_term;
}

}  // namespace volvelle
