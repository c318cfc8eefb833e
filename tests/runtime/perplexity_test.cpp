// Perplexity: which targets are scored and by what, against plain llama.cpp over the whole text in
// one step; the statistics against values worked out by hand; and that a memory which loses rows,
// or stores them coarsely, shows.
//
// Tolerance of one nll between our f32 rows and llama.cpp's flash path: 0.02, as in the drift test
// (largest logit difference there 0.13, so most of it is flash attention's own f16 arithmetic); a
// target scored by a neighbouring row is off by several nats.
#include "volvelle/eval/perplexity.hpp"

#include <cmath>
#include <numeric>

#include "eval/statistics.hpp"
#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle {
namespace {

PerplexityOptions options_for(const std::vector<std::string>& specs, std::int64_t chunk) {
  PerplexityOptions options;
  for (const std::string& spec : specs) {
    options.specs.push_back(test::require(parse_memory_spec(spec)));
  }
  options.chunk = chunk;
  options.n_threads = 2;
  return options;
}

const Model& smol() {
  static const Model model = test::load_model(test::kSmolF32);
  return model;
}

constexpr std::size_t kTokens = 301;

const std::vector<TokenId>& tokens() {
  static const std::vector<TokenId> tokens = test::book_tokens(smol(), "emma.txt", kTokens);
  return tokens;
}

TEST(Perplexity, TargetsAndOrderAreThoseOfOnePass) {
  EngineStepperOptions engine;
  engine.n_ctx = kTokens;
  engine.n_threads = engine.n_threads_batch = 2;
  const auto full = test::require(make_engine_stepper(smol(), engine));
  test::require(full->step(tokens(), Logits::kAll));
  std::vector<double> expected;
  for (std::size_t t = 1; t < kTokens; ++t) {
    expected.push_back(
        negative_log_likelihood(full->logits(static_cast<std::int64_t>(t - 1)), tokens()[t]));
  }
  for (const std::int64_t chunk : {100, 301}) {
    const auto rows = test::require(
        run_perplexity(smol(), tokens(), options_for({"full+kv(k=f32,v=f32)"}, chunk), {}));
    ASSERT_EQ(rows.size(), 1u);
    ASSERT_EQ(rows[0].n_targets, std::ssize(expected));
    for (std::size_t t = 0; t < expected.size(); ++t) {
      ASSERT_NEAR(rows[0].nll[t], expected[t], 0.02) << "target " << t << ", chunk " << chunk;
    }
    const double mean =
        std::accumulate(rows[0].nll.begin(), rows[0].nll.end(), 0.0) / (kTokens - 1);
    EXPECT_NEAR(rows[0].nll_mean, mean, 1e-12);
    EXPECT_NEAR(rows[0].perplexity, std::exp(mean), 1e-9);
    EXPECT_EQ(rows[0].kl_max, 0);  // with itself
    EXPECT_EQ(rows[0].top1_agreement, 1);
    EXPECT_EQ(rows[0].bytes_per_token, 2 * 30 * 3 * 64 * 4);
  }
}

TEST(Perplexity, DamageShowsAndGrowsWithIt) {
  auto options = options_for({"full+kv(k=f32,v=f32)", "full", "full+kv(k=q8_0,v=q8_0)",
                              "full+kv(k=q4_0,v=q4_0)", "sink(4)+window(64)"},
                             150);
  options.against_engine = true;
  const auto rows = test::require(run_perplexity(smol(), tokens(), options, {}));
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows[5].spec, "llama flash");
  EXPECT_EQ(rows[6].spec, "llama no-flash");
  // f16 below q8_0 below q4_0, each by far; figures of this kind are in docs/benchmarks.md.
  EXPECT_LT(rows[1].kl_mean, 1e-4);
  EXPECT_LT(3 * rows[1].kl_mean, rows[2].kl_mean);
  EXPECT_LT(3 * rows[2].kl_mean, rows[3].kl_mean);
  EXPECT_LT(rows[5].kl_mean, 1e-4);
  EXPECT_GT(rows[4].kl_mean, 1e-2);
  EXPECT_GT(rows[4].nll_delta_mean, 0);
  EXPECT_LT(rows[4].top1_agreement, 1);
  EXPECT_EQ(rows[1].bytes_per_token, 2 * 30 * 3 * 64 * 2);
  EXPECT_EQ(rows[3].bytes_per_token, 2 * 30 * 3 * 36);  // 2 blocks of 18 bytes for 64 elements
  for (const PerplexityRow& row : rows) {
    EXPECT_NEAR(row.nll_delta_mean, row.nll_mean - rows[0].nll_mean, 1e-12);
    EXPECT_EQ(row.n_targets, std::ssize(tokens()) - 1);
  }
}

TEST(Perplexity, MomentsOfKnownSamples) {
  const SampleMean some = sample_mean({1, 2, 4, 9});  // variance (9 + 4 + 0 + 25) / 3
  EXPECT_NEAR(some.mean, 4, 1e-15);
  EXPECT_NEAR(some.error, std::sqrt(38.0 / 3 / 4), 1e-15);
  EXPECT_EQ(sample_mean({}).error, 0);
  EXPECT_EQ(sample_mean({5}).mean, 5);
  EXPECT_EQ(sample_mean({5}).error, 0);
}

TEST(Perplexity, RefusesWhatMakesNoSense) {
  const auto code = [](std::size_t n, const std::vector<std::string>& specs, std::int64_t chunk) {
    const auto rows =
        run_perplexity(smol(), std::span(tokens()).first(n), options_for(specs, chunk), {});
    return rows.ok() ? std::optional<ErrorCode>() : rows.error().code;
  };
  EXPECT_EQ(code(1, {"full"}, 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(8, {}, 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(8, {"full"}, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(8, {"full+topk(k=4,index=exact)"}, 8), ErrorCode::kUnsupported);
  EXPECT_EQ(code(8, {"full+topk(k=4)"}, 8), ErrorCode::kInvalidArgument);  // would be exact
  const std::vector<TokenId> long_text(9000, 1);
  const auto rows = run_perplexity(smol(), long_text, options_for({"full"}, 8), {});
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().code, ErrorCode::kContextExceeded);
  auto cancelled = options_for({"full"}, 8);
  cancelled.cancel.cancel();
  const auto stopped = run_perplexity(smol(), tokens(), cancelled, {});
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace volvelle
