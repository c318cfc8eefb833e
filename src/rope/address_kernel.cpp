// Phases are products of 64-bit integers modulo one turn, so no error grows with the distance.
#include "rope/address_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace volvelle {
namespace {

constexpr double kTurn = 18446744073709551616.0;  // 2^64

double weight_of(std::span<const double> weights, std::size_t b, std::size_t n) {
  return weights.empty() ? 1.0 / static_cast<double>(n) : weights[b];
}

}  // namespace

double address_kernel(const BandFrequencies& bands, std::span<const double> weights,
                      std::uint64_t distance) {
  double sum = 0.0;
  for (std::size_t b = 0; b < bands.size(); ++b)
    sum += weight_of(weights, b, bands.size()) * std::cos(bands.angle(b, distance));
  return sum;
}

std::vector<double> kernel_table(const BandFrequencies& bands, std::span<const double> weights,
                                 std::int64_t last) {
  std::vector<double> table;
  table.reserve(static_cast<std::size_t>(last + 1));
  for (std::int64_t distance = 0; distance <= last; ++distance)
    table.push_back(address_kernel(bands, weights, static_cast<std::uint64_t>(distance)));
  return table;
}

std::int64_t first_below(std::span<const double> table, double level, bool or_equal) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](double g) { return g < level || (or_equal && g == level); });
  return found == table.end() ? -1 : found - table.begin();
}

KernelAlias kernel_alias(std::span<const double> table) {
  const std::int64_t begin = first_below(table, 0.0, true);
  KernelAlias alias;
  if (begin < 0) return alias;
  const auto best = std::max_element(table.begin() + begin, table.end());
  alias.distance = best - table.begin();
  alias.value = *best;
  for (std::int64_t d = begin; d < std::ssize(table); ++d) {
    // The fast bands make neighbours of an alias nearly as strong: the runner-up is a peak.
    const auto at = static_cast<std::size_t>(d);
    const bool peak = (d == begin || table[at] >= table[at - 1]) &&
                      (d + 1 == std::ssize(table) || table[at] >= table[at + 1]);
    if (!peak || d == alias.distance) continue;
    if (alias.runner_up >= 0 && table[at] <= table[static_cast<std::size_t>(alias.runner_up)])
      continue;
    alias.runner_up = d;
  }
  if (alias.runner_up >= 0)
    alias.gap = alias.value - table[static_cast<std::size_t>(alias.runner_up)];
  return alias;
}

std::int64_t band_alias(const BandFrequencies& bands) {
  // Divisors can turn bands off (by factors of 1e30) and put others last.
  double longest = -1.0;
  for (std::size_t b = 0; b < bands.size(); ++b) {
    const double wavelength = bands.wavelength(b);
    if (wavelength < 0x1p62) longest = std::max(longest, wavelength);
  }
  return longest > 0.0 ? std::llround(longest) : -1;
}

std::int64_t joint_return(const BandFrequencies& bands, int n_slowest, double tolerance,
                          std::int64_t limit) {
  const auto n = static_cast<std::size_t>(n_slowest);
  if (n_slowest < 1 || n > bands.size() || !(tolerance > 0.0)) return 0;
  const std::span<const std::uint64_t> slow = std::span(bands.turns).last(n);
  const double share = tolerance / (2.0 * std::numbers::pi);
  const auto within = static_cast<std::uint64_t>(share * kTurn);
  const auto slowest = static_cast<long double>(slow.back());
  const long double wavelength = static_cast<long double>(kTurn) / slowest;
  const long double half = static_cast<long double>(within) / slowest;
  for (std::int64_t turn = 1;; ++turn) {
    const auto center = static_cast<long double>(turn) * wavelength;
    const auto begin = std::max<std::int64_t>(1, std::llround(std::ceil(center - half - 1)));
    const auto end = std::llround(std::floor(center + half + 1));
    if (begin > limit) return 0;
    for (std::int64_t d = begin; d <= std::min<std::int64_t>(end, limit); ++d) {
      const auto is_back = [&](std::uint64_t turns) {
        return turns * static_cast<std::uint64_t>(d) + within <= 2 * within;
      };
      if (std::all_of(slow.rbegin(), slow.rend(), is_back)) return d;
    }
  }
}

std::int64_t first_indistinct_position(std::string_view type) {
  if (type == "bf16") return 257;
  if (type == "f16") return 2049;
  if (type == "f32") return 16777217;
  return 0;
}

}  // namespace volvelle
