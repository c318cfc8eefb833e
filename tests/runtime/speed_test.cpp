// Speed: the statistics against hand-computed values, that a measured state is restored, and
// well-formed rows. No time is asserted.
#include "volvelle/eval/speed.hpp"

#include <cmath>
#include <optional>

#include "eval/speed_variant.hpp"
#include "eval/statistics.hpp"
#include "runtime/support.hpp"

namespace volvelle {
namespace {

/// The wired retriever, loaded once.
const Model& retriever() {
  static const Model model = test::load_model(test::kWired);
  return model;
}

TEST(Statistics, OfKnownSamples) {
  EXPECT_EQ(median({5, 1, 9}), 5);
  EXPECT_EQ(median({5, 1, 9, 6}), 5.5);
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2);  // nearest rank: at least half do not exceed it
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.51), 3);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1.0), 4);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.0), 1);
  EXPECT_EQ(relative_spread({2, 4, 3}), 2.0 / 3);
  EXPECT_EQ(relative_spread({}), 0);
}

std::vector<TokenId> some_tokens(std::size_t n) {
  std::vector<TokenId> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>(5 + i * i % 32);  // fillers
  return tokens;
}

SpeedOptions small_options() {
  SpeedOptions options;
  options.depths = {256, 64, 64};
  options.n_decode = 3;
  options.n_prefill = 40;
  options.repetitions = 3;
  options.n_threads = 1;
  options.n_ubatch = 64;
  options.specs = {"full", "sink(4)+window(64)"};
  return options;
}

TEST(SpeedVariant, MeasuringLeavesTheStateAsItWas) {
  const auto tokens = some_tokens(300);
  const std::span<const TokenId> text(tokens);
  const SpeedOptions options = small_options();
  std::vector<std::unique_ptr<SpeedVariant>> variants;
  for (const std::string& spec : options.specs) {
    variants.push_back(make_memory_variant(retriever(), spec, options).value());
  }
  variants.push_back(make_engine_variant(retriever(), 300, true, options).value());
  variants.push_back(make_engine_variant(retriever(), 300, false, options).value());
  for (const auto& variant : variants) {
    SCOPED_TRACE(variant->name());
    ASSERT_TRUE(variant->advance(text.first(128)).ok());
    ASSERT_TRUE(variant->advance(text.subspan(128, 72)).ok());
    const auto next = [&] {
      Stepper* stepper = variant->restore().value();
      EXPECT_EQ(stepper->length(), 200);
      EXPECT_TRUE(stepper->step(text.subspan(200, 1), Logits::kLast).ok());
      const auto logits = stepper->logits(0);
      return std::vector<float>(logits.begin(), logits.end());
    };
    const std::vector<float> before = next();
    const auto sample = measure(*variant, text.subspan(200, 80), text.subspan(200, 5));
    ASSERT_TRUE(sample.ok()) << sample.error().message;
    EXPECT_GT(sample->prefill, 0);
    EXPECT_GT(sample->decode, 0);
    EXPECT_EQ(sample->attention > 0, !variant->is_engine());
    EXPECT_LT(sample->attention, sample->decode);
    EXPECT_EQ(variant->depth(), 200);
    EXPECT_EQ(next(), before);
  }
}

TEST(Speed, RowsAreWellFormed) {
  std::vector<Progress> reports;
  const auto rows = run_speed(retriever(), some_tokens(296), small_options(),
                              [&](const Progress& p) { reports.push_back(p); });
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_EQ(rows->size(), 8u);
  const std::vector<std::string> names = {"full", "sink(4)+window(64)", "llama flash",
                                          "llama no-flash"};
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const SpeedRow& row = (*rows)[i];
    SCOPED_TRACE(row.spec);
    EXPECT_EQ(row.depth, i < 4 ? 64 : 256);
    EXPECT_EQ(row.spec, names[i % 4]);
    EXPECT_GT(row.prefill_tps, 0);
    EXPECT_GT(row.decode_ms, 0);
    EXPECT_TRUE(std::isfinite(row.attention_ratio));
    EXPECT_GE(row.spread, 0);
    const bool ours = i % 4 < 2;
    EXPECT_EQ(row.attention_ms > 0, ours);
    EXPECT_EQ(row.prefill_ratio > 0, ours);
    EXPECT_EQ(row.decode_ratio > 0, ours);
  }
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().done, reports.back().total);
}

TEST(Speed, WithoutPrefillAndWithoutTheEngine) {
  SpeedOptions options = small_options();
  options.n_prefill = 0;
  options.against_engine = false;
  options.depths = {0};
  const auto rows = run_speed(retriever(), some_tokens(10), options, {});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_EQ(rows->size(), 2u);
  for (const SpeedRow& row : *rows) {
    EXPECT_EQ(row.prefill_tps, 0);
    EXPECT_GT(row.decode_ms, 0);
    EXPECT_EQ(row.prefill_ratio, 0);
    EXPECT_EQ(row.decode_ratio, 0);
    EXPECT_EQ(row.attention_ratio, 0);
  }
}

std::optional<ErrorCode> error_of(const SpeedOptions& options, std::size_t n_tokens) {
  const auto rows = run_speed(retriever(), some_tokens(n_tokens), options, {});
  return rows.ok() ? std::nullopt : std::optional(rows.error().code);
}

TEST(Speed, RefusesWhatMakesNoSense) {
  EXPECT_EQ(error_of(small_options(), 295), ErrorCode::kInvalidArgument);  // one token too short
  SpeedOptions options = small_options();
  options.depths = {};
  EXPECT_EQ(error_of(options, 300), ErrorCode::kInvalidArgument);
  options.depths = {-1};
  EXPECT_EQ(error_of(options, 300), ErrorCode::kInvalidArgument);
  options.depths = {262144};
  EXPECT_EQ(error_of(options, 262144 + 40), ErrorCode::kContextExceeded);
  options = small_options();
  options.n_decode = 0;
  EXPECT_EQ(error_of(options, 300), ErrorCode::kInvalidArgument);
  options = small_options();
  options.specs = {"window"};
  EXPECT_EQ(error_of(options, 300), ErrorCode::kInvalidArgument);
  options = small_options();
  options.specs = {};
  options.against_engine = false;
  EXPECT_EQ(error_of(options, 300), ErrorCode::kInvalidArgument);
}

TEST(Speed, StopsWhenCancelled) {
  SpeedOptions options = small_options();
  options.cancel.cancel();
  EXPECT_EQ(error_of(options, 300), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace volvelle
