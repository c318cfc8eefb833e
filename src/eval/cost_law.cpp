// See cost_law.hpp. Without a window the pairs are a closed form; with one, the sum over the tokens
// of what the rule lets each see.
#include "volvelle/eval/cost_law.hpp"

#include <algorithm>
#include <map>

#include "eval/statistics.hpp"

namespace volvelle {

std::int64_t attended_pairs(const WindowRule& rule, std::int64_t before, std::int64_t n) noexcept {
  if (rule.tokens == 0) return n * before + n * (n + 1) / 2;
  std::int64_t pairs = 0;
  for (std::int64_t t = before; t < before + n; ++t) {
    const std::int64_t sinks = std::min(rule.sinks, t + 1);
    pairs += sinks + t + 1 - std::clamp(rule.begin(t), sinks, t + 1);
  }
  return pairs;
}

LineFit fit_line(std::span<const double> x, std::span<const double> y) {
  LineFit fit;
  fit.n = std::ssize(x);
  if (x.empty()) return fit;
  const auto n = static_cast<double>(x.size());
  double x_mean = 0, y_mean = 0;
  for (std::size_t i = 0; i < x.size(); ++i) x_mean += x[i] / n, y_mean += y[i] / n;
  double xx = 0, xy = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - x_mean) * (x[i] - x_mean);
    xy += (x[i] - x_mean) * (y[i] - y_mean);
    yy += (y[i] - y_mean) * (y[i] - y_mean);
  }
  fit.slope = xx > 0 ? xy / xx : 0;
  fit.intercept = y_mean - fit.slope * x_mean;
  if (yy > 0) fit.r2 = fit.slope * xy / yy;
  if (yy == 0) fit.r2 = 1;  // every y is on the line
  return fit;
}

LineFit fit_chunk_times(std::span<const ChunkTime> chunks) {
  std::map<std::int64_t, std::int64_t> sizes;
  for (const ChunkTime& chunk : chunks) ++sizes[chunk.tokens];
  const auto usual = std::max_element(
      sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::map<std::int64_t, std::vector<double>> seconds;  // by tokens before
  for (const ChunkTime& chunk : chunks) {
    if (chunk.tokens == usual->first) seconds[chunk.before].push_back(chunk.seconds);
  }
  std::vector<double> x, y;
  for (auto& [before, sample] : seconds) {
    x.push_back(static_cast<double>(before));
    y.push_back(median(std::move(sample)));
  }
  return fit_line(x, y);
}

}  // namespace volvelle
