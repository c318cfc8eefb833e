// Fidelity: the formulas against values computed with 40 decimal digits, and the protocol of
// compare() with steppers that record what they are asked for. Tolerance 1e-13: a few roundings of
// numbers below 10.
#include "volvelle/eval/fidelity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace volvelle {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// For the rows {1, 2, 3, -4.5} and {3, 1, 0.5, 0}.
constexpr double kKlPq = 1.554320857654831909;
constexpr double kKlQp = 1.657492808099329580;
constexpr double kNll0 = 2.407973831148147948;
constexpr double kNll3 = 7.907973831148147948;

TEST(FidelityFormulas, KlDivergenceOfKnownRows) {
  const std::vector<float> p = {1, 2, 3, -4.5};
  const std::vector<float> q = {3, 1, 0.5, 0};
  EXPECT_NEAR(kl_divergence(p, q), kKlPq, 1e-13);
  EXPECT_NEAR(kl_divergence(q, p), kKlQp, 1e-13);
  EXPECT_EQ(kl_divergence(p, p), 0);
}

TEST(FidelityFormulas, NegativeLogLikelihoodOfKnownRow) {
  const std::vector<float> p = {1, 2, 3, -4.5};
  EXPECT_NEAR(negative_log_likelihood(p, 0), kNll0, 1e-13);
  EXPECT_NEAR(negative_log_likelihood(p, 3), kNll3, 1e-13);
}

TEST(FidelityFormulas, LargeLogitsNeitherOverflowNorLoseDigits) {
  // 1001, 1002, ... are exact in f32, so only the shift differs.
  const std::vector<float> p = {1001, 1002, 1003, 995.5};
  const std::vector<float> q = {-997, -999, -999.5, -1000};
  EXPECT_NEAR(kl_divergence(p, q), kKlPq, 1e-11);
  EXPECT_NEAR(negative_log_likelihood(p, 0), kNll0, 1e-11);
}

TEST(FidelityFormulas, ImpossibleTokens) {
  const std::vector<float> half = {0, 0, -kInfinity};
  const std::vector<float> third = {0, 0, 0};
  EXPECT_NEAR(kl_divergence(half, third), std::log(1.5), 1e-13);
  EXPECT_EQ(kl_divergence(third, half), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(
      std::isnan(kl_divergence(std::vector<float>{0, std::nanf("")}, std::vector<float>{0, 0})));
}

TEST(FidelityFormulas, ContractViolationsThrow) {
  const std::vector<float> two = {0, 0};
  EXPECT_THROW(kl_divergence(two, std::vector<float>{0}), std::logic_error);
  EXPECT_THROW(negative_log_likelihood(two, 2), std::logic_error);
  EXPECT_THROW(negative_log_likelihood(two, -1), std::logic_error);
}

TEST(FidelityFormulas, ArgmaxTakesTheFirst) {
  EXPECT_EQ(argmax(std::vector<float>{1, 5, 5, -kInfinity}), 1);
  EXPECT_EQ(argmax(std::vector<float>{}), -1);
}

/// Logits are a fixed function of position and token, changed at chosen positions.
class ScriptedStepper final : public Stepper {
 public:
  struct Call {
    std::size_t n_tokens;
    Logits want;
    bool operator==(const Call&) const = default;
  };

  Status step(std::span<const TokenId> tokens, Logits want) override {
    calls.push_back({tokens.size(), want});
    position_ += static_cast<std::int64_t>(tokens.size());
    if (position_ > fail_at) return Error{ErrorCode::kEngine, "scripted: out of order"};
    row_ = row(position_ - 1, tokens.back());
    return {};
  }
  std::span<const float> logits(std::int64_t) const override { return row_; }
  std::int64_t length() const override { return position_; }
  Status truncate(std::int64_t length) override { return position_ = length, Status(); }

  std::vector<float> row(std::int64_t position, TokenId token) const {
    std::vector<float> out(5);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>((position * 7 + token * 3 + static_cast<int>(i) * i) % 11) / 4;
    }
    if (position == changed_at) out[0] = change;
    return out;
  }

  std::vector<Call> calls;
  std::int64_t changed_at = -1;
  float change = 0;
  std::int64_t fail_at = std::numeric_limits<std::int64_t>::max();

 private:
  std::int64_t position_ = 0;
  std::vector<float> row_;
};

std::vector<TokenId> count_to(int n) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) tokens[static_cast<std::size_t>(i)] = i % 5;  // of the vocabulary
  return tokens;
}

/// KL from probabilities, not from log-sums.
double brute_force_kl(const std::vector<float>& p, const std::vector<float>& q) {
  double p_sum = 0, q_sum = 0, kl = 0;
  for (std::size_t i = 0; i < p.size(); ++i)
    p_sum += std::exp(double{p[i]}), q_sum += std::exp(double{q[i]});
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double a = std::exp(double{p[i]}) / p_sum;
    kl += a * std::log(a / (std::exp(double{q[i]}) / q_sum));
  }
  return kl;
}

TEST(FidelityCompare, PrefillsInChunksThenDecodesOneByOne) {
  ScriptedStepper reference, candidate;
  std::vector<Progress> reports;
  const auto result = compare(reference, candidate, count_to(13), 3, 4,
                              [&](const Progress& p) { reports.push_back(p); });
  ASSERT_TRUE(result.ok()) << result.error().message;
  using Call = ScriptedStepper::Call;
  const std::vector<Call> expected = {{4, Logits::kNone}, {4, Logits::kNone}, {2, Logits::kNone},
                                      {1, Logits::kLast}, {1, Logits::kLast}, {1, Logits::kLast}};
  EXPECT_EQ(reference.calls, expected);
  EXPECT_EQ(candidate.calls, expected);
  EXPECT_EQ(result->n, 3);
  EXPECT_EQ(result->kl_mean, 0);
  EXPECT_EQ(result->top1_agreement, 1);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().done, 13);
  EXPECT_EQ(reports.back().total, 13);
}

TEST(FidelityCompare, FindsTheOneChangedPosition) {
  const auto tokens = count_to(210);
  ScriptedStepper reference, candidate;
  candidate.changed_at = 207;
  candidate.change = 6.5f;  // above every scripted logit: the most likely token changes too
  const double kl = brute_force_kl(reference.row(207, 2), candidate.row(207, 2));
  const double delta = 6.5 - reference.row(207, 2)[0];
  ASSERT_GT(kl, 0.1);

  const auto result = compare(reference, candidate, tokens, 200, 64, {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->n, 200);
  EXPECT_NEAR(result->kl_max, kl, 1e-12);
  EXPECT_NEAR(result->kl_mean, kl / 200, 1e-12);
  EXPECT_EQ(result->kl_p99, 0);  // one of 200 lies above the 99 % rank
  EXPECT_NEAR(result->top1_agreement, 199.0 / 200, 1e-12);
  EXPECT_NEAR(result->logit_delta_max, delta, 1e-12);
}

TEST(FidelityCompare, LikelihoodsOfTheTextsOwnNextTokens) {
  // Four logits of five tokens each know what comes next: tokens 1 to 4 stand in the vocabulary.
  const std::vector<TokenId> tokens = {0, 1, 4, 2, 3, 1};
  ScriptedStepper reference, candidate;
  candidate.changed_at = 3;
  candidate.change = 6.5f;
  const auto result = compare(reference, candidate, tokens, 5, 4, {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  double expected = 0, changed = 0;
  for (std::size_t t = 1; t < 5; ++t) {
    const auto position = static_cast<std::int64_t>(t);
    expected += negative_log_likelihood(reference.row(position, tokens[t]), tokens[t + 1]) / 4;
    changed += negative_log_likelihood(candidate.row(position, tokens[t]), tokens[t + 1]) / 4;
  }
  EXPECT_EQ(result->n_predicted, 4);
  EXPECT_NEAR(result->reference_nll, expected, 1e-13);
  EXPECT_NEAR(result->candidate_nll, changed, 1e-13);
  EXPECT_GT(changed, expected + 0.1);
  // One of four differences is d, the others are 0: their deviation is d / 2, of the mean d / 4.
  EXPECT_NEAR(result->nll_delta_error, changed - expected, 1e-13);
}

TEST(FidelityCompare, TokensOutsideTheVocabularyAreAnError) {
  for (const TokenId wrong : {-1, 5}) {
    ScriptedStepper reference, candidate;
    const auto result = compare(reference, candidate, std::vector<TokenId>{0, 1, wrong}, 2, 4, {});
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
  }
}

TEST(FidelityCompare, TheLastTokenOfATextPredictsNothing) {
  ScriptedStepper reference, candidate;
  const auto result = compare(reference, candidate, count_to(3), 1, 4, {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->n_predicted, 0);
}

TEST(FidelityCompare, ChangesBeforeTheLastPositionsAreNotCompared) {
  ScriptedStepper reference, candidate;
  candidate.changed_at = 5;
  candidate.change = 6.5f;
  const auto result = compare(reference, candidate, count_to(13), 3, 4, {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->kl_max, 0);
}

TEST(FidelityCompare, EveryPositionMayBeCompared) {
  ScriptedStepper reference, candidate;
  const auto result = compare(reference, candidate, count_to(7), 7, 4, {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->n, 7);
}

std::optional<ErrorCode> error_of(ScriptedStepper& reference, ScriptedStepper& candidate,
                                  std::int64_t last, std::int64_t chunk) {
  const auto result = compare(reference, candidate, count_to(10), last, chunk, {});
  return result.ok() ? std::nullopt : std::optional(result.error().code);
}

TEST(FidelityCompare, RefusesWhatMakesNoSense) {
  ScriptedStepper a, b;
  EXPECT_EQ(error_of(a, b, 0, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(a, b, 11, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(a, b, 1, 0), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(a.calls.empty());
  ScriptedStepper used;
  ASSERT_TRUE(used.step(count_to(1), Logits::kNone).ok());
  EXPECT_EQ(error_of(used, b, 1, 4), ErrorCode::kInvalidArgument);
}

TEST(FidelityCompare, NotANumberIsAnError) {
  ScriptedStepper reference, candidate;
  candidate.changed_at = 9;
  candidate.change = std::nanf("");
  EXPECT_EQ(error_of(reference, candidate, 2, 4), ErrorCode::kNumeric);
}

TEST(FidelityCompare, ErrorsOfARunComeThrough) {
  for (const std::int64_t at : {3, 9}) {  // in the prefill, in the decoding
    ScriptedStepper reference, candidate;
    candidate.fail_at = at;
    EXPECT_EQ(error_of(reference, candidate, 2, 4), ErrorCode::kEngine);
  }
}

}  // namespace
}  // namespace volvelle
