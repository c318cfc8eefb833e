// The law itself: states of any split of the rows merge to the state of all rows.
#include <gtest/gtest.h>

#include "law/attend_case.hpp"
#include "volvelle/attention/attention_state.hpp"

namespace volvelle::law {
namespace {

constexpr int kDim = 64;

AttentionState random_state(std::mt19937& random) {
  std::normal_distribution<float> normal;
  AttentionState state(kDim);
  state.m = 10.0f * normal(random);
  state.d = 1.0f + std::abs(normal(random));
  for (float& x : state.o) x = normal(random);
  return state;
}

AttentionState merged(AttentionState a, const AttentionState& b) {
  merge_into(a, b);
  return a;
}

/// Largest difference of normalised outputs and of log denominators.
double distance(const AttentionState& a, const AttentionState& b) {
  const std::vector<float> x = normalized(a);
  const std::vector<float> y = normalized(b);
  double top = std::abs((static_cast<double>(a.m) + std::log(a.d)) -
                        (static_cast<double>(b.m) + std::log(b.d)));
  for (std::size_t i = 0; i < x.size(); ++i) top = std::max<double>(top, std::abs(x[i] - y[i]));
  return top;
}

// A few roundings of numbers up to about 30 (m) and 4 (o / d): 16 * 30 * 2^-24 < 3e-5.
constexpr double kMergeTolerance = 3e-5;

TEST(MergeLaw, IsAssociativeAndCommutative) {
  std::mt19937 random(31);
  for (int trial = 0; trial < 200; ++trial) {
    const AttentionState a = random_state(random), b = random_state(random),
                         c = random_state(random);
    EXPECT_EQ(distance(merged(a, b), merged(b, a)), 0.0);
    EXPECT_LE(distance(merged(merged(a, b), c), merged(a, merged(b, c))), kMergeTolerance);
  }
}

TEST(MergeLaw, EmptyStateIsNeutral) {
  std::mt19937 random(32);
  const AttentionState a = random_state(random);
  const AttentionState empty(kDim);
  for (const AttentionState& b : {merged(a, empty), merged(empty, a)}) {
    EXPECT_EQ(a.o, b.o);
    EXPECT_EQ(a.m, b.m);
    EXPECT_EQ(a.d, b.d);
  }
  EXPECT_TRUE(merged(empty, empty).empty());
  EXPECT_EQ(normalized(empty), std::vector<float>(kDim, 0.0f));
}

/// Random partition of rows into tiers of consecutive rows; each tier answers with states, the fold
/// must equal float64.
class TierSplit : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(std::get<0>(GetParam())).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
};

TEST_P(TierSplit, FoldsToTheWhole) {
  const std::int64_t tokens = std::get<1>(GetParam());
  std::mt19937 random(33);
  for (const float amplitude : {1.0f, 100.0f}) {
    Case c({.shape = shape_of(2, 3, kDim, kDim),
            .n_rows = 500,
            .visible = causal(500 - tokens, tokens),
            .cuts = {130},
            .amplitude = amplitude,
            .seed = 34});
    AttendWorkspace workspace = workspace_for(c.options().shape);
    const std::vector<double> expected = reference_attend(c.task());
    const double tolerance = c.tolerance();
    for (int trial = 0; trial < 6; ++trial) {
      std::vector<std::int64_t> borders = {0, 500};
      for (int i = 0; i < trial; ++i) borders.push_back(static_cast<std::int64_t>(random() % 501));
      std::sort(borders.begin(), borders.end());
      AttendTask task = c.task();
      const auto visible = task.visible;
      std::vector<float> m(static_cast<std::size_t>(tokens) * 6), d(m);
      task.m = m.data();
      task.d = d.data();
      std::vector<AttentionState> states(m.size(), AttentionState(kDim));
      for (std::size_t tier = 0; tier + 1 < borders.size(); ++tier) {
        std::vector<VisibleRows> part;
        for (const VisibleRows& v : visible) {
          part.push_back({0, borders[tier], std::clamp(v.end, borders[tier], borders[tier + 1])});
        }
        task.visible = part;
        attend(task, workspace, 2);
        for (std::size_t i = 0; i < states.size(); ++i) {
          AttentionState state(kDim);
          state.m = m[i];
          state.d = d[i];
          std::copy_n(c.out().begin() + static_cast<std::ptrdiff_t>(i) * kDim, kDim,
                      state.o.begin());
          merge_into(states[i], state);
        }
      }
      std::vector<float> out;
      for (const AttentionState& state : states) {
        const std::vector<float> row = normalized(state);
        out.insert(out.end(), row.begin(), row.end());
      }
      EXPECT_LE(max_difference(out, expected), tolerance)
          << "amplitude " << amplitude << " tiers " << borders.size() - 1;
    }
  }
}

// m, d and o themselves against float64, not only their quotient; also with |m| so large that its
// rounding would show.
TEST_P(TierSplit, StatesMatchFloat64) {
  const std::int64_t tokens = std::get<1>(GetParam());
  for (const float amplitude : {1.0f, 300.0f}) {
    for (const bool learned : {false, true}) {
      Case c({.shape = shape_of(1, 3, kDim, kDim),
              .n_rows = 300,
              .visible = causal(300 - tokens, tokens),
              .learned_sinks = learned,
              .amplitude = amplitude,
              .seed = 35});
      AttendWorkspace workspace = workspace_for(c.options().shape);
      AttendTask task = c.task();
      std::vector<float> m(static_cast<std::size_t>(tokens) * 3), d(m);
      task.m = m.data();
      task.d = d.data();
      attend(task, workspace, 2);
      const double tolerance = c.tolerance();
      const double relative = tolerance / c.max_abs_v();
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (int h = 0; h < 3; ++h) {
          const BasicAttentionState<double> expected = reference_state(task, t, h);
          const auto i = static_cast<std::size_t>(t * 3 + h);
          EXPECT_NEAR(m[i], expected.m, relative * 2 + std::abs(expected.m) * 1e-7);
          const double factor =
              std::exp(m[i] - expected.m);  // both states relative to the same maximum
          EXPECT_NEAR(d[i] * factor / expected.d, 1.0, relative);
          for (int x = 0; x < kDim; ++x) {
            EXPECT_NEAR(c.out()[i * kDim + static_cast<std::size_t>(x)] * factor / expected.d,
                        expected.o[static_cast<std::size_t>(x)] / expected.d, tolerance);
          }
        }
      }
    }
  }
}

// Scores near 5000, where a float m in natural logarithms is off by up to 2e-4: tiers must still
// weigh each other right. Both ways see the same scores bit by bit, so only the merge may differ: a
// few roundings, far below 2e-4.
TEST_P(TierSplit, LargeMaximaMergeWithoutLoss) {
  const std::int64_t tokens = std::get<1>(GetParam());
  const AttentionShape shape = shape_of(1, 1, kDim, kDim, ElementType::kF32, ElementType::kF32);
  Case c({.shape = shape, .n_rows = 400, .visible = causal(400 - tokens, tokens), .seed = 36});
  for (float& x : c.q()) x = 20.0f + 0.1f * x;
  for (float& x : c.k()) x = 31.25f + 0.05f * x;
  c.cut({});
  AttendWorkspace workspace = workspace_for(shape);
  AttendTask task = c.task();
  attend(task, workspace, 1);
  const std::vector<float> whole = c.out();
  task = c.task();
  const auto visible = task.visible;
  std::vector<float> m(static_cast<std::size_t>(tokens));
  std::vector<float> d(m);
  task.m = m.data();
  task.d = d.data();
  std::vector<AttentionState> states(m.size(), AttentionState(kDim));
  for (std::int64_t begin = 0; begin < 400; begin += 50) {
    std::vector<VisibleRows> part;
    for (const VisibleRows& v : visible) {
      part.push_back({0, begin, std::clamp(v.end, begin, begin + 50)});
    }
    task.visible = part;
    attend(task, workspace, 1);
    for (std::size_t i = 0; i < states.size(); ++i) {
      AttentionState state(kDim);
      state.m = m[i];
      state.d = d[i];
      std::copy_n(c.out().begin() + static_cast<std::ptrdiff_t>(i) * kDim, kDim, state.o.begin());
      merge_into(states[i], state);
    }
  }
  EXPECT_GT(states[0].m, 4000.0f);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::vector<float> row = normalized(states[i]);
    for (std::size_t x = 0; x < kDim; ++x) EXPECT_NEAR(row[x], whole[i * kDim + x], 3e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, TierSplit,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::Values(1, 4, 60)),
                         [](const auto& isa) {
                           return std::get<0>(isa.param) + "_tokens_" +
                                  std::to_string(std::get<1>(isa.param));
                         });

}  // namespace
}  // namespace volvelle::law
