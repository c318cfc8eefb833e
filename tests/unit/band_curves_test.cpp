// Tables of curves against the searches of one head at a time, whose own tests hold them against
// independent programs.
#include "index/band_curves.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace volvelle {
namespace {

BandFrequencies frequencies(const RotaryConfig& config) { return band_frequencies(config).value(); }

std::vector<BandFrequencies> configurations() {
  return {frequencies({.rotated_dims = 64, .base = 1e5}),
          frequencies({.rotated_dims = 128, .base = 1e4}),
          frequencies({.rotated_dims = 128,
                       .base = 5e5,
                       .scaling = BandScaling::kLlama3,
                       .factor = 8,
                       .original_context = 8192})};
}

TEST(BandCurves, RangesAreThoseOfTheSearch) {
  constexpr std::int64_t kLimit = 3000;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform;
  int inside = 0;
  for (const BandFrequencies& bands : configurations()) {
    const BandCurves curves(bands, kLimit);
    ASSERT_EQ(curves.limit(), kLimit);
    for (int profile = 0; profile < 4; ++profile) {
      std::vector<double> amplitude, phase;
      double whole = 0.0;
      for (std::size_t b = 0; b < bands.size(); ++b) {
        amplitude.push_back(uniform(random));
        phase.push_back(0.8 * (uniform(random) - 0.5));
        whole += amplitude.back();
      }
      const double threshold = (0.2 + 0.12 * profile) * whole;
      const LogitBands logits{amplitude, phase};
      const RetrievalRange expected = retrieval_range(bands, logits, threshold, kLimit);
      const RetrievalRange found = curves.range(logits, threshold);
      EXPECT_EQ(found.hard, expected.hard);
      // Averages of 600 and of 1,229 points: two steps of 1 %.
      EXPECT_NEAR(found.smoothed / expected.smoothed, 1.0, 0.021);
      inside += expected.smoothed > 1.0 && expected.smoothed < kLimit ? 1 : 0;
    }
  }
  EXPECT_GE(inside, 6);  // crossings were met, not only limits
}

TEST(BandCurves, PhasesMayBeLeftOut) {
  const BandFrequencies bands = frequencies({.rotated_dims = 64, .base = 1e5});
  const BandCurves curves(bands, 5000);
  const std::vector<double> flat(bands.size(), 1.0 / static_cast<double>(bands.size()));
  EXPECT_EQ(curves.range({flat}, 0.5).hard, retrieval_range(bands, {flat}, 0.5, 5000).hard);
  EXPECT_EQ(curves.range({flat}, -2.0).hard, 5000);
  EXPECT_EQ(curves.range({flat}, 2.0).hard, 0);
}

TEST(BandCurves, AliasesAreThoseOfTheKernelsTable) {
  std::mt19937 random(4);
  std::exponential_distribution<double> exponential;
  for (const BandFrequencies& bands : configurations()) {
    const BandCurves curves(bands, 9000);
    for (int profile = 0; profile < 4; ++profile) {
      std::vector<double> weights;
      double whole = 0.0;
      for (std::size_t b = 0; b < bands.size(); ++b) {
        weights.push_back(exponential(random));
        whole += weights.back();
      }
      for (double& weight : weights) weight /= whole;
      const KernelAlias expected = kernel_alias(kernel_table(bands, weights, 8000));
      const KernelAlias found = curves.alias(weights, 8000);
      EXPECT_EQ(found.distance, expected.distance);
      EXPECT_NEAR(found.value, expected.value, 1e-12);
      EXPECT_EQ(found.runner_up, expected.runner_up);
    }
  }
  // The published integer of base 1e5 and 64 dimensions.
  const BandFrequencies bands = frequencies({.rotated_dims = 64, .base = 1e5});
  const std::vector<double> flat(bands.size(), 1.0 / static_cast<double>(bands.size()));
  EXPECT_EQ(BandCurves(bands, 9000).alias(flat, 8192).distance, 4141);
}

TEST(BandCurves, TablesStaySmall) {
  EXPECT_EQ(BandCurves(frequencies({.rotated_dims = 256, .base = 1e6}), 1 << 20).limit(), 32768);
  EXPECT_EQ(BandCurves(frequencies({.rotated_dims = 64, .base = 1e6}), 100).limit(), 100);
}

}  // namespace
}  // namespace volvelle
