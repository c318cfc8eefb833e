// Statistics of samples. Order statistics take their sample by value because they reorder it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace volvelle {

/// Nearest-rank quantile: the smallest value that at least a share `q` of the sample does not
/// exceed. 0 for an empty sample.
inline double quantile(std::vector<double> sample, double q) {
  if (sample.empty()) return 0;
  const double rank = std::ceil(q * static_cast<double>(sample.size()));
  const auto index = static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(sample.begin(), sample.begin() + index, sample.end());
  return sample[static_cast<std::size_t>(index)];
}

/// Middle value, or the mean of the two middle values. 0 for an empty sample.
inline double median(std::vector<double> sample) {
  if (sample.empty()) return 0;
  std::sort(sample.begin(), sample.end());
  const std::size_t half = sample.size() / 2;
  return sample.size() % 2 == 1 ? sample[half] : (sample[half - 1] + sample[half]) / 2;
}

/// (max - min) / median: how far repetitions lie apart, relative. 0 if the median is 0.
inline double relative_spread(const std::vector<double>& sample) {
  const double middle = median(sample);
  if (middle == 0) return 0;
  const auto [low, high] = std::minmax_element(sample.begin(), sample.end());
  return (*high - *low) / middle;
}

/// Mean, and the standard error of it if the entries are independent; zeros for an empty sample.
struct Moments {
  double mean = 0;
  double error = 0;
};
inline Moments moments(const std::vector<double>& sample) {
  Moments result;
  const auto n = static_cast<double>(sample.size());
  for (const double x : sample) result.mean += x / n;
  double squares = 0;
  for (const double x : sample) squares += (x - result.mean) * (x - result.mean);
  if (sample.size() > 1) result.error = std::sqrt(squares / (n - 1) / n);
  return result;
}

}  // namespace volvelle
