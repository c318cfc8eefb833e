// What a model's rotary positions let its heads retrieve: configuration alone, and predicted
// against measured curves on a real text.
#include "eval/rotary_study.hpp"

#include "eval/statistics.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

TEST(RotaryStudy, TheConfigurationAlone) {
  const Model model = load_model(kSmolQ41);  // base 1e5, 64 dimensions
  const BandFrequencies bands = require(model_frequencies(model.info().rope));
  ASSERT_EQ(bands.size(), 32U);
  const RotaryFacts facts = rotary_facts(bands, 131072);
  EXPECT_EQ(facts.band_alias, 438460);
  EXPECT_EQ(facts.kernel_alias.distance, 4141);
  EXPECT_NEAR(facts.kernel_alias.value, 0.514728, 1e-6);
  EXPECT_GT(facts.address_capacity[0], facts.address_capacity[2]);
}

TEST(RotaryStudy, MeansPredictTheMeasuredCurves) {
  const Model model = load_model(kSmolQ41);
  const BandFrequencies bands = require(model_frequencies(model.info().rope));
  RotaryStudyOptions options;
  options.max_distance = 512;
  options.session.n_threads = 2;
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 2048);
  const auto heads = require(run_rotary_study(model, bands, tokens, options, {}));
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
  }
  // Nothing is fitted, so a sign or a pairing that is wrong would leave no correlation.
  EXPECT_GT(median(detrended), 0.5);
  EXPECT_GT(median(raw), 0.5);
  EXPECT_FALSE(run_rotary_study(model, bands, std::span(tokens).first(600), options, {}).ok());
}

TEST(RotaryStudy, WhatCanNotBeReadIsRefusedByName) {
  RopeConfig rope;
  EXPECT_FALSE(model_frequencies(rope).ok());
  rope.layout = RopeLayout::kHalfSplit;
  rope.rotated_dims = 64;
  EXPECT_TRUE(model_frequencies(rope).ok());
  rope.frequency_factors = true;
  EXPECT_NE(model_frequencies(rope).error().message.find("tensor"), std::string::npos);
}

}  // namespace
}  // namespace volvelle::test
