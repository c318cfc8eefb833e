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
struct SampleMean {
  double mean = 0;
  double error = 0;
};
inline SampleMean sample_mean(const std::vector<double>& sample) {
  SampleMean result;
  const auto n = static_cast<double>(sample.size());
  for (const double x : sample) result.mean += x / n;
  double squares = 0;
  for (const double x : sample) squares += (x - result.mean) * (x - result.mean);
  if (sample.size() > 1) result.error = std::sqrt(squares / (n - 1) / n);
  return result;
}

/// Correlation of two samples of one size (Pearson); 0 if one of them does not vary.
inline double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean_a = sample_mean(a).mean;
  const double mean_b = sample_mean(b).mean;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace volvelle
