// What a model's rotary positions let its heads retrieve: configuration alone, and predicted
// against measured curves on a real text.
#include "eval/rotary_study.hpp"

#include <cmath>
#include <numbers>

#include "eval/statistics.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

TEST(RotaryStudy, TheConfigurationAlone) {
  const Model model = load_model(kSmolQ41);  // base 1e5, 64 dimensions
  const ModelRotations rotations = require(model_rotations(model));
  ASSERT_EQ(rotations.groups.size(), 1U);
  EXPECT_TRUE(rotations.notes.empty());
  EXPECT_EQ(rotations.groups[0].layers.size(), 30U);
  const BandFrequencies& bands = rotations.groups[0].bands;
  ASSERT_EQ(bands.size(), 32U);
  const RotaryFacts facts = rotary_facts(bands, 131072);
  EXPECT_EQ(facts.band_alias, 438460);
  EXPECT_EQ(facts.kernel_alias.distance, 4141);
  EXPECT_NEAR(facts.kernel_alias.value, 0.514728, 1e-6);
  EXPECT_GT(facts.address_capacity[0], facts.address_capacity[2]);
  // The slowest 1 to 4 bands within .1 rad, of an independent 113-bit program.
  ASSERT_EQ(facts.joint_returns.size(), 8U);
  const std::vector<std::int64_t> returns{431482, 3062241, 98213836, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(facts.joint_returns[i].n_slowest, static_cast<int>(i) + 1);
    EXPECT_EQ(facts.joint_returns[i].tolerance, 0.1);
    EXPECT_EQ(facts.joint_returns[i].distance, returns[i]);
  }
}

// Divisors of 1e30 turn bands off, and may stand before bands that turn.
TEST(RotaryStudy, BandsThatDoNotTurnNeverReturn) {
  const auto bands = require(node_frequencies({.layout = RopeLayout::kHalfSplit, .rotated_dims = 8},
                                              {1.0, 1e30, 1.0, 1e30}));
  const RotaryFacts facts = rotary_facts(bands, 1000);
  ASSERT_EQ(facts.joint_returns.size(), 4U);  // two bands, two tolerances
  // theta = 0.01: 628 is 6.28 rad, within .1 of a turn, but so is 619 (6.19, .093 short).
  EXPECT_EQ(facts.joint_returns[0].distance, 619);
  const auto still =
      require(node_frequencies({.layout = RopeLayout::kHalfSplit, .rotated_dims = 2}, {1e30}));
  EXPECT_TRUE(rotary_facts(still, 1000).joint_returns.empty());
}

ModelQueryFactors factors_of(const Model& model, const ModelRotations& rotations) {
  return require(model_query_factors(model, rotations, {}, {}));
}

TEST(RotaryStudy, DistancesAreThoseThatTheTextReaches) {
  EXPECT_EQ(retrieval_distances(1024), (std::vector<std::int64_t>{64, 512, 1024}));
  EXPECT_EQ(retrieval_distances(256), (std::vector<std::int64_t>{64, 256}));
  EXPECT_EQ(retrieval_distances(8), (std::vector<std::int64_t>{8}));
}

TEST(RotaryStudy, MeansPredictTheMeasuredCurves) {
  const Model model = load_model(kSmolQ41);
  const ModelRotations rotations = require(model_rotations(model));
  RotaryStudyOptions options;
  options.max_distance = 512;
  options.session.n_threads = 2;
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 2048);
  const auto heads = require(
      run_rotary_study(model, rotations, factors_of(model, rotations), tokens, options, {}));
  ASSERT_EQ(heads.size(), 270U);
  std::vector<double> raw, detrended;
  for (const RotaryHead& head : heads) {
    raw.push_back(head.raw_r);
    detrended.push_back(head.detrended_r);
    EXPECT_GE(head.sink_mass, 0.0);
    EXPECT_LE(head.sink_mass, 1.0);
    EXPECT_GT(head.key_rank, 1.0);
    EXPECT_LE(head.key_rank, 64.0);
    EXPECT_LE(head.ceiling_r, 1.0);
    // What the weights allow no query exceeds, and it is no empty promise either.
    EXPECT_GT(head.query_share, 0.01);
    EXPECT_LE(head.query_share, 1.0);
    ASSERT_EQ(head.recall.size(), 3U);
    EXPECT_LT(head.recall[0], head.recall[1]);
    EXPECT_EQ(head.predicted.size(), curve_distances(512).size());
  }
  // Nothing is fitted, so a sign or a pairing that is wrong would leave no correlation.
  EXPECT_GT(median(detrended), 0.5);
  EXPECT_GT(median(raw), 0.5);
  EXPECT_FALSE(
      run_rotary_study(model, rotations, {}, std::span(tokens).first(600), options, {}).ok());
}

/// Phi(z) to the power of so many others.
double largest_of(double z, double others) {
  return std::exp(others * std::log1p(-0.5 * std::erfc(z / std::numbers::sqrt2)));
}

// What is said of distances hangs together: figures from curves, capacities from figures, ranges
// from curves.
void check_distances(const RotaryHead& head) {
  ASSERT_EQ(head.at.size(), retrieval_distances(512).size());
  for (const RetrievalAt& at : head.at) {
    const TargetLogits& logits = at.logits;
    EXPECT_GT(logits.sigma, 0.0);
    EXPECT_GT(logits.target_sigma, 0.0);
    EXPECT_NEAR(at.z * std::hypot(logits.sigma, logits.target_sigma),
                logits.matched - logits.background, 1e-9);
    if (at.capacity > 1e-3 && at.capacity < 1e9) {
      EXPECT_NEAR(largest_of(at.z, at.capacity), 0.95, 1e-6);
    }
    EXPECT_GE(at.ln_softmax_capacity, 0.0);
  }
  EXPECT_NEAR(head.matched.back(), head.at.back().logits.matched, 1e-6);
  ASSERT_TRUE(head.target_range);
  const RetrievalRange& range = head.target_range->range;
  if (range.hard < head.target_range->searched) {  // what is proved may reach beyond the search
    EXPECT_LE(range.guaranteed, static_cast<double>(range.hard) + 1.0);
  }
  EXPECT_EQ(head.target_range->searched, 4096);
  if (head.range) {
    EXPECT_GT(head.range->threshold, 0.0);
  }
  if (head.alias.distance >= 0) {
    EXPECT_GT(head.alias.value, 0.0);
  }
}

TEST(RotaryStudy, SomeHeadsFindWhatWasBehindAnEarlierToken) {
  const Model model = load_model(kSmolQ41);
  const ModelRotations rotations = require(model_rotations(model));
  RotaryStudyOptions options;
  options.max_distance = 512;
  options.range_limit = 4096;
  options.session.n_threads = 2;
  const auto heads = require(
      run_rotary_study(model, rotations, {}, book_tokens(model, "emma.txt", 1024), options, {}));
  ASSERT_EQ(heads.size(), 270U);
  std::vector<double> z, habits;
  for (const RotaryHead& head : heads) {
    check_distances(head);
    EXPECT_GT(head.n_pairs, 300);
    EXPECT_EQ(head.query_share, 0.0);  // no factors were given
    z.push_back(head.at.front().z);
    habits.push_back(head.induction_z);
  }
  // Targets turned to a distance, and the same targets where they stand among all keys, are two
  // measurements: wrong pairs or signs would leave no agreement.
  EXPECT_GT(correlation(z, habits), 0.5);
  EXPECT_GT(quantile(z, 1.0), 1.5);
}

// Gemma's layers with a window turn faster than its other layers; metadata give one base.
TEST(RotaryStudy, LayersWithAWindowHaveTheirOwnRotation) {
  const Model model = load_model(kGemmaF32);
  const ModelRotations rotations = require(model_rotations(model));
  ASSERT_EQ(rotations.groups.size(), 2U);
  EXPECT_EQ(rotations.groups[0].window, 0);
  EXPECT_EQ(rotations.groups[0].node.base, 1e6);
  EXPECT_EQ(rotations.groups[0].layers, (std::vector<int>{5, 11, 17}));
  EXPECT_EQ(rotations.groups[1].node.base, 1e4);
  EXPECT_EQ(rotations.groups[1].window, 512);
}

// Queries that are normalised before they are rotated are bounded without any weight but the gain.
TEST(RotaryStudy, NoQueryOfANormalisedHeadExceedsItsBound) {
  const Model model = load_model(kGemmaF32);
  const ModelRotations rotations = require(model_rotations(model));
  RotaryStudyOptions options;
  options.max_distance = 256;
  options.session.n_threads = 2;
  const ModelQueryFactors factors = factors_of(model, rotations);
  EXPECT_TRUE(factors.notes.empty());
  EXPECT_EQ(query_bounds(factors).size(), 18U * 4U);  // layers with a window too
  const auto heads = require(run_rotary_study(
      model, rotations, factors, book_tokens(model, "persuasion.txt", 1024), options, {}));
  ASSERT_EQ(heads.size(), 12U);
  for (const RotaryHead& head : heads) {
    EXPECT_GT(head.query_share, 0.05);
    EXPECT_LE(head.query_share, 1.0);
  }
}

TEST(RotaryStudy, GraphsOfOtherModelsAreRead) {
  const Model yarn = load_model("tiny/llama-rope-yarn.gguf");
  const ModelRotations scaled = require(model_rotations(yarn));
  EXPECT_NE(describe(scaled.groups[0].node).find("yarn"), std::string::npos);
  EXPECT_FALSE(node_frequencies({.layout = RopeLayout::kOther, .rotated_dims = 64}).ok());
  EXPECT_FALSE(node_frequencies({.layout = RopeLayout::kHalfSplit, .rotated_dims = 7}).ok());
  const auto divided =
      require(node_frequencies({.layout = RopeLayout::kHalfSplit, .rotated_dims = 4}, {1.0, 8.0}));
  EXPECT_NEAR(divided.theta[1], 0.01 / 8.0, 1e-12);
}

}  // namespace
}  // namespace volvelle::test
