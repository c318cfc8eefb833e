// Attention weights against float64: weight i is exp(s_i - m) / d, where m and d are those of the
// reference over all visible rows and s_i is the reference's m over row i alone.
//
// Tolerance: a score is off by (sqrt(dim) + 8) u score_size (see Case::tolerance()), a weight by
// twice that relative to itself (score and denominator), so by that absolutely, as weights are at
// most 1; 1e-7 for the rounding of the result.
#include "volvelle/attention/weights.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "law/attend_case.hpp"

namespace volvelle::law {
namespace {

struct Expected {
  std::vector<double> weights;
  double sink_share = 0;
};

Expected expected_weights(AttendTask task, std::int64_t token, int head) {
  const VisibleRows seen = task.visible[static_cast<std::size_t>(token)];
  const BasicAttentionState<double> all = reference_state(task, token, head);
  Expected expected;
  if (task.sink_logits != nullptr) {
    expected.sink_share = std::exp(task.sink_logits[head] - all.m) / all.d;
  }
  task.sink_logits = nullptr;
  std::vector<VisibleRows> one(task.visible.begin(), task.visible.end());
  for (std::int64_t row = 0; row < seen.end; ++row) {
    if (row >= seen.sink_end && row < seen.begin) continue;
    one[static_cast<std::size_t>(token)] = {0, row, row + 1};
    task.visible = one;
    expected.weights.push_back(std::exp(reference_state(task, token, head).m - all.m) / all.d);
  }
  return expected;
}

double tolerance(const Case& c) {
  const double u = std::ldexp(1.0, -24);
  return 2 * (std::sqrt(c.options().shape.head_dim_k) + 8) * u * c.score_size() + 1e-7;
}

std::span<float> part(std::vector<float>& all, std::int64_t i, std::int64_t n) {
  return std::span(all).subspan(static_cast<std::size_t>(i * n), static_cast<std::size_t>(n));
}

void check(CaseOptions options) {
  Case c(std::move(options));
  const AttendTask task = c.task();
  const int group = task.shape.group();
  for (std::int64_t token = 0; token < task.n_tokens(); ++token) {
    const std::int64_t n = n_visible(task.visible[static_cast<std::size_t>(token)]);
    for (int kv_head = 0; kv_head < task.shape.n_kv_heads; ++kv_head) {
      std::vector<float> of_group(static_cast<std::size_t>(group * n), -1.0f);
      std::vector<double> shares(static_cast<std::size_t>(group), -1.0);
      group_attention_weights(task, token, kv_head, of_group, shares);
      for (int h = 0; h < group; ++h) {
        const Expected expected = expected_weights(task, token, kv_head * group + h);
        const std::span<float> found = part(of_group, h, n);
        ASSERT_EQ(static_cast<std::int64_t>(expected.weights.size()), n);
        EXPECT_LE(max_difference({found.begin(), found.end()}, expected.weights), tolerance(c));
        EXPECT_NEAR(shares[static_cast<std::size_t>(h)], expected.sink_share, tolerance(c));
        std::vector<float> alone(static_cast<std::size_t>(n), -1.0f);
        const double share = attention_weights(task, token, kv_head * group + h, alone);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), found.begin()));
        EXPECT_EQ(share, shares[static_cast<std::size_t>(h)]);
      }
    }
  }
}

TEST(AttentionWeights, AnyShape) {
  std::uint32_t seed = 100;
  for (const int group : {1, 3, 8}) {
    for (const auto& [dim_k, dim_v] :
         {std::pair{64, 64}, {80, 80}, {100, 36}, {192, 128}, {512, 512}, {1, 1}, {17, 33}}) {
      check({.shape = shape_of(2, group, dim_k, dim_v),
             .n_rows = 43,
             .visible = causal(40, 3),
             .seed = ++seed});
    }
  }
}

TEST(AttentionWeights, WindowsSinksAndSegments) {
  std::uint32_t seed = 200;
  for (const std::int64_t sinks : {0, 4, 70}) {
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{}, {3, 7, 100, 101, 190}}) {
      check({.shape = shape_of(2, 3, 64, 64),
             .n_rows = 203,
             .visible = causal(200, 3, sinks, 100),
             .cuts = cuts,
             .seed = ++seed});
    }
  }
}

TEST(AttentionWeights, SoftCapLearnedSinksAndFloatRows) {
  std::uint32_t seed = 300;
  for (const float cap : {0.0f, 2.0f, 50.0f}) {
    for (const bool learned : {false, true}) {
      AttentionShape shape =
          shape_of(1, 4, 64, 64, learned ? ElementType::kF32 : ElementType::kF16);
      shape.soft_cap = cap;
      check({.shape = shape,
             .n_rows = 62,
             .visible = causal(60, 2),
             .learned_sinks = learned,
             .amplitude = 3.0f,
             .seed = ++seed});
    }
  }
}

// Scores of about +-1e4: no overflow, no NaN, and the weights still sum up to 1.
TEST(AttentionWeights, ExtremeScores) {
  Case c({.shape = shape_of(1, 1, 64, 64, ElementType::kF32, ElementType::kF32),
          .n_rows = 50,
          .visible = causal(49, 1),
          .amplitude = 1e4f});
  std::vector<float> weights(50);
  EXPECT_EQ(attention_weights(c.task(), 0, 0, weights), 0.0);
  EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1.0, 1e-6);
}

// The output of attend() is the mean of the values under these weights.
TEST(AttentionWeights, ExplainWhatAttendGives) {
  Case c({.shape = shape_of(2, 2, 64, 64),
          .n_rows = 130,
          .visible = causal(128, 2, 4, 64),
          .learned_sinks = true,
          .seed = 7});
  AttendTask task = c.task();
  AttendWorkspace workspace = workspace_for(task.shape);
  attend(task, workspace, 2);
  for (int head = 0; head < 4; ++head) {
    std::vector<float> weights(static_cast<std::size_t>(n_visible(task.visible[1])));
    attention_weights(task, 1, head, weights);
    for (int i = 0; i < 64; ++i) {
      double mean = 0;
      for (std::size_t w = 0; w < weights.size(); ++w) {
        const std::int64_t row = visible_row(task.visible[1], static_cast<std::int64_t>(w));
        mean += weights[w] * c.v()[static_cast<std::size_t>((head / 2 * 130 + row) * 64 + i)];
      }
      // f16 values lie within 2^-11 of the drawn ones.
      EXPECT_NEAR(task.out[(4 + head) * 64 + i], mean, c.max_abs_v() * 0x1p-11 + c.tolerance());
    }
  }
}

TEST(AttentionWeights, TokensThatSeeNothing) {
  for (const bool learned : {false, true}) {
    Case c({.shape = shape_of(1, 2, 64, 64),
            .n_rows = 30,
            .visible = {{0, 5, 5}},
            .learned_sinks = learned});
    EXPECT_EQ(attention_weights(c.task(), 0, 0, {}), learned ? 1.0 : 0.0);
  }
}

TEST(AttentionWeights, DamageShows) {
  Case c({.shape = shape_of(1, 1, 64, 64), .n_rows = 30, .visible = causal(29, 1)});
  c.k()[64 * 12] = std::numeric_limits<float>::quiet_NaN();
  c.cut({});
  std::vector<float> weights(30);
  attention_weights(c.task(), 0, 0, weights);
  EXPECT_TRUE(std::isnan(weights[12]));
}

TEST(AttentionWeights, ContractViolationsThrow) {
  Case c({.shape = shape_of(1, 2, 64, 64), .n_rows = 30, .visible = causal(29, 1)});
  std::vector<float> weights(60);
  const auto of = [&](std::int64_t token, int head, std::size_t n) {
    return attention_weights(c.task(), token, head, std::span(weights).first(n));
  };
  EXPECT_NO_THROW(of(0, 1, 30));
  EXPECT_THROW(of(1, 0, 30), std::logic_error);
  EXPECT_THROW(of(-1, 0, 30), std::logic_error);
  EXPECT_THROW(of(0, 2, 30), std::logic_error);
  EXPECT_THROW(of(0, 0, 29), std::logic_error);
  EXPECT_THROW(group_attention_weights(c.task(), 0, 1, weights, {}), std::logic_error);
  EXPECT_THROW(group_attention_weights(c.task(), 0, 0, std::span(weights).first(30), {}),
               std::logic_error);
  std::vector<double> shares(1);
  EXPECT_THROW(group_attention_weights(c.task(), 0, 0, weights, shares), std::logic_error);
}

}  // namespace
}  // namespace volvelle::law
