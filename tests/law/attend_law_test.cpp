// Decode and tiled attention against plain float64 loops, on every instruction set this machine
// has.
#include <gtest/gtest.h>

#include "law/attend_case.hpp"

namespace volvelle::law {
namespace {

class AttendLaw : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
};

TEST_P(AttendLaw, AnyGroupAndDims) {
  std::uint32_t seed = 100;
  for (const int group : {1, 3, 4, 5, 7, 8, 16}) {
    for (const auto& [dim_k, dim_v] :
         {std::pair{64, 64}, {32, 32}, {80, 80}, {96, 96}, {100, 100}, {128, 128}, {192, 128}}) {
      for (const std::int64_t tokens : {1, 3, 9}) {
        expect_reference({.shape = shape_of(2, group, dim_k, dim_v),
                          .n_rows = 150 + tokens,
                          .visible = causal(150, tokens),
                          .seed = ++seed});
      }
    }
  }
}

TEST_P(AttendLaw, LargeAndOddDims) {
  std::uint32_t seed = 200;
  for (const auto& [dim_k, dim_v] :
       {std::pair{256, 256}, {512, 512}, {1, 1}, {5, 3}, {17, 33}, {63, 31}}) {
    for (const std::int64_t tokens : {1, 20}) {
      expect_reference({.shape = shape_of(1, 3, dim_k, dim_v),
                        .n_rows = 90 + tokens,
                        .visible = causal(90, tokens),
                        .seed = ++seed});
    }
  }
}

TEST_P(AttendLaw, LengthsAndPrefixes) {
  std::uint32_t seed = 400;
  for (const std::int64_t prefix : {0, 1, 62, 63, 64, 65, 255, 256, 257, 700}) {
    for (const std::int64_t tokens : {1, 2, 4, 5, 33, 130}) {
      expect_reference({.shape = shape_of(1, 3, 64, 64),
                        .n_rows = prefix + tokens,
                        .visible = causal(prefix, tokens),
                        .seed = ++seed},
                       3);
    }
  }
}

// Up to kDecodeMaxQueries queries of a KV head share one reading; tokens see different ends, and
// windows that move inside of blocks.
TEST_P(AttendLaw, SmallBatches) {
  std::uint32_t seed = 450;
  for (const auto& [group, tokens] : {std::pair{1, 16},
                                      {1, 20},
                                      {1, 21},
                                      {2, 10},
                                      {3, 6},
                                      {3, 7},
                                      {4, 5},
                                      {4, 6},
                                      {8, 2},
                                      {8, 3}}) {
    for (const std::int64_t window : {0, 200}) {
      std::vector<VisibleRows> visible = causal(500, tokens);
      for (VisibleRows& v : visible) {
        if (window > 0) v = {3, v.end - window, v.end};
      }
      expect_reference({.shape = shape_of(2, group, 64, 80),
                        .n_rows = 500 + tokens,
                        .visible = visible,
                        .cuts = {100, 259, 480},
                        .seed = ++seed},
                       3);
    }
  }
}

TEST_P(AttendLaw, WindowsAndSinks) {
  std::uint32_t seed = 500;
  for (const std::int64_t sinks : {0, 4, 70}) {
    for (const std::int64_t window : {64, 100, 300}) {
      for (const std::int64_t tokens : {1, 4, 150}) {
        expect_reference({.shape = shape_of(2, 2, 64, 64),
                          .n_rows = 600 + tokens,
                          .visible = causal(600, tokens, sinks, window),
                          .seed = ++seed});
      }
    }
  }
}

TEST_P(AttendLaw, SegmentsOfAnySize) {
  std::uint32_t seed = 600;
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{1}, {63, 64, 65}, {3, 7, 100, 101, 102, 300}}) {
    for (const std::int64_t tokens : {1, 4, 40}) {
      expect_reference({.shape = shape_of(2, 3, 80, 80),
                        .n_rows = 310 + tokens,
                        .visible = causal(310, tokens),
                        .cuts = cuts,
                        .seed = ++seed},
                       4);
    }
  }
}

TEST_P(AttendLaw, SoftCapAndLearnedSinks) {
  std::uint32_t seed = 700;
  for (const float cap : {0.0f, 2.0f, 50.0f}) {
    for (const bool learned : {false, true}) {
      for (const std::int64_t tokens : {1, 4, 70}) {
        AttentionShape shape = shape_of(2, 4, 64, 64);
        shape.soft_cap = cap;
        expect_reference({.shape = shape,
                          .n_rows = 280 + tokens,
                          .visible = causal(280, tokens),
                          .learned_sinks = learned,
                          .amplitude = 3.0f,
                          .seed = ++seed});
      }
    }
  }
}

// Scores of about +-1e4 and equal scores: no overflow, no NaN, still the softmax.
TEST_P(AttendLaw, ExtremeAndEqualScores) {
  for (const float amplitude : {0.0f, 1e4f}) {
    for (const std::int64_t tokens : {1, 20}) {
      expect_reference({.shape = shape_of(1, 3, 64, 64, ElementType::kF32, ElementType::kF32),
                        .n_rows = 400 + tokens,
                        .visible = causal(400, tokens),
                        .amplitude = amplitude,
                        .seed = 801});
    }
  }
}

// A token that sees nothing: zeros, or the learned sink alone, and the empty state.
TEST_P(AttendLaw, TokensThatSeeNothing) {
  for (const std::int64_t tokens : {2, 9}) {
    for (const bool learned : {false, true}) {
      std::vector<VisibleRows> visible(static_cast<std::size_t>(tokens), VisibleRows{0, 5, 5});
      visible.back() = {0, 5, 30};
      Case c({.shape = shape_of(1, 2, 64, 64),
              .n_rows = 30,
              .visible = visible,
              .learned_sinks = learned,
              .seed = 900});
      AttendWorkspace workspace = workspace_for(c.options().shape);
      AttendTask task = c.task();
      attend(task, workspace, 2);
      EXPECT_LE(max_difference(c.out(), reference_attend(task)), c.tolerance());
      EXPECT_EQ(c.out()[0], 0.0f);

      task = c.task();
      std::vector<float> m(static_cast<std::size_t>(tokens) * 2, 7.0f);
      std::vector<float> d(m);
      task.m = m.data();
      task.d = d.data();
      attend(task, workspace, 2);
      EXPECT_EQ(d[0], learned ? 1.0f : 0.0f);
      if (learned) {
        EXPECT_FLOAT_EQ(m[0], task.sink_logits[0]);
      } else {
        EXPECT_EQ(m[0], -std::numeric_limits<float>::infinity());
      }
      EXPECT_EQ(c.out()[0], 0.0f);
      EXPECT_FALSE(workspace.take_not_finite());
    }
  }
}

// Windows of neighbouring tokens may leave rows between them that nobody sees and that no segment
// need hold.
TEST_P(AttendLaw, RowsThatNobodySeesMayBeAnything) {
  for (const std::int64_t tokens : {2, 8}) {
    std::vector<VisibleRows> visible;
    for (std::int64_t t = 0; t < tokens; ++t) visible.push_back({2, 10 + 20 * t, 15 + 20 * t});
    Case c({.shape = shape_of(1, 3, 64, 64), .n_rows = 200, .visible = visible, .seed = 950});
    for (std::int64_t row = 0; row < 200; ++row) {
      bool seen = false;
      for (const VisibleRows& v : visible)
        seen = seen || row < v.sink_end || (row >= v.begin && row < v.end);
      if (seen) continue;
      std::fill_n(c.k().begin() + row * 64, 64, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(c.v().begin() + row * 64, 64, std::numeric_limits<float>::infinity());
    }
    c.cut({});
    AttendWorkspace workspace = workspace_for(c.options().shape);
    for (const bool deterministic : {false, true}) {
      AttendTask task = c.task();
      task.deterministic = deterministic;
      attend(task, workspace, 2);
      EXPECT_FALSE(workspace.take_not_finite());
      EXPECT_LE(max_difference(c.out(), reference_attend(task)), 1e-5);  // 7 rows, |v| < 5
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttendLaw, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace volvelle::law
