// Closed forms of the cost of reading, and the lines that are fitted through measured times.
#include "volvelle/eval/cost_law.hpp"

#include <gtest/gtest.h>

#include <random>

namespace volvelle {
namespace {

/// By looking at every pair.
std::int64_t counted_pairs(const WindowRule& rule, std::int64_t before, std::int64_t n) {
  std::int64_t pairs = 0;
  for (std::int64_t t = before; t < before + n; ++t) {
    for (std::int64_t j = 0; j <= t; ++j) {
      pairs += j < rule.sinks || j >= rule.begin(t) ? 1 : 0;
    }
  }
  return pairs;
}

TEST(CostLaw, PairsAreThoseThatTheRuleShows) {
  for (const char* spec : {"full", "sink(4)+window(64)", "sink(4)+window(20,block=1)",
                           "window(1,block=1)", "sink(70)+window(100)"}) {
    for (const std::int64_t layer_window : {0, 33}) {
      const WindowRule rule = window_rule(parse_memory_spec(spec).value(), layer_window);
      for (const std::int64_t before : {0, 3, 64, 200}) {
        for (const std::int64_t n : {1, 5, 130}) {
          EXPECT_EQ(attended_pairs(rule, before, n), counted_pairs(rule, before, n))
              << spec << ", layer window " << layer_window << ", " << n << " behind " << before;
        }
      }
    }
  }
}

TEST(CostLaw, LineThroughKnownPoints) {
  const std::vector<double> x = {0, 1, 2, 3};
  const LineFit perfect = fit_line(x, std::vector<double>{5, 7, 9, 11});
  EXPECT_NEAR(perfect.intercept, 5, 1e-12);
  EXPECT_NEAR(perfect.slope, 2, 1e-12);
  EXPECT_NEAR(perfect.r2, 1, 1e-12);
  // y = 0 1 1 2: sxy = 3, sxx = 5, syy = 2, so slope 0.6, intercept 0.1, r2 = 9 / 10
  const LineFit fair = fit_line(x, std::vector<double>{0, 1, 1, 2});
  EXPECT_NEAR(fair.slope, 0.6, 1e-12);
  EXPECT_NEAR(fair.intercept, 0.1, 1e-12);
  EXPECT_NEAR(fair.r2, 0.9, 1e-12);
  EXPECT_NEAR(fit_line(x, std::vector<double>{1, -1, -1, 1}).r2, 0, 1e-12);
  EXPECT_EQ(fit_line(x, std::vector<double>{4, 4, 4, 4}).r2, 1);
  EXPECT_EQ(fit_line(std::vector<double>{2, 2}, std::vector<double>{1, 3}).slope, 0);
  EXPECT_EQ(fit_line({}, {}).n, 0);
}

TEST(CostLaw, ChunkTimesUseMediansOfWholeChunks) {
  std::vector<ChunkTime> chunks;
  for (int trial = 0; trial < 5; ++trial) {
    for (std::int64_t i = 0; i < 8; ++i) {
      const double interrupted = trial == 2 && i == 3 ? 50.0 : 0.0;  // once, so no median shows it
      chunks.push_back({i * 256, 256, 0.1 + 2e-5 * static_cast<double>(i * 256) + interrupted});
    }
    chunks.push_back({8 * 256, 31, 9.0});  // a ragged end
  }
  std::shuffle(chunks.begin(), chunks.end(), std::mt19937(5));
  const LineFit fit = fit_chunk_times(chunks);
  EXPECT_EQ(fit.n, 8);
  EXPECT_NEAR(fit.intercept, 0.1, 1e-9);
  EXPECT_NEAR(fit.slope, 2e-5, 1e-12);
  EXPECT_NEAR(fit.r2, 1, 1e-9);
  EXPECT_EQ(fit_chunk_times({}).n, 0);
}

}  // namespace
}  // namespace volvelle
