// Every figure is a search or a closed form of rope/.
#include "eval/rotary_facts.hpp"

#include <algorithm>

#include "rope/retrieval_range.hpp"

namespace volvelle {
namespace {

/// The bands that come back within the positions there can be, fast ones first: divisors can turn
/// bands off and put others last.
BandFrequencies turning_bands(const BandFrequencies& bands) {
  std::vector<std::size_t> order;
  for (std::size_t b = 0; b < bands.size(); ++b)
    if (bands.turns[b] > 0 && bands.wavelength(b) < 0x1p62) order.push_back(b);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bands.turns[a] > bands.turns[b]; });
  BandFrequencies turning = bands;
  turning.theta.clear();
  turning.turns.clear();
  for (const std::size_t b : order) {
    turning.theta.push_back(bands.theta[b]);
    turning.turns.push_back(bands.turns[b]);
  }
  return turning;
}

}  // namespace

RotaryFacts rotary_facts(const BandFrequencies& bands, std::int64_t length) {
  RotaryFacts facts;
  for (std::size_t b = 0; b < bands.size(); ++b) facts.wavelengths.push_back(bands.wavelength(b));
  facts.band_alias = band_alias(bands);
  const std::vector<double> table = kernel_table(bands, {}, length);
  facts.kernel_alias = kernel_alias(table);
  for (const double level : {0.75, 0.5, 0.25, 0.0})
    facts.crossings.push_back(first_below(table, level));
  for (const std::uint64_t distance : {64U, 512U, 4096U}) {
    facts.address_capacity.push_back(address_capacity(address_kernel(bands, {}, distance),
                                                      static_cast<int>(bands.size()), 0.05));
  }
  const BandFrequencies turning = turning_bands(bands);
  for (const double tolerance : {0.1, 0.5}) {
    for (int n = 1; n <= std::min(4, static_cast<int>(turning.size())); ++n) {
      facts.joint_returns.push_back(
          {n, tolerance, joint_return(turning, n, tolerance, kJointReturnLimit)});
    }
  }
  return facts;
}

}  // namespace volvelle
