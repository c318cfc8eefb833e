// What a model's rotary positions let its heads retrieve: configuration alone, and predicted
// against measured curves on a real text.
#include "eval/rotary_study.hpp"

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
}

TEST(RotaryStudy, MeansPredictTheMeasuredCurves) {
  const Model model = load_model(kSmolQ41);
  const ModelRotations rotations = require(model_rotations(model));
  RotaryStudyOptions options;
  options.max_distance = 512;
  options.session.n_threads = 2;
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 2048);
  const auto heads = require(run_rotary_study(model, rotations, tokens, options, {}));
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
  EXPECT_FALSE(run_rotary_study(model, rotations, std::span(tokens).first(600), options, {}).ok());
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
  const auto heads = require(
      run_rotary_study(model, rotations, book_tokens(model, "persuasion.txt", 1024), options, {}));
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
