// Perplexity in lockstep: every target exactly once and in order, whatever the chunk, and the
// arithmetic against plain sums in float64.
#include <cmath>
#include <random>

#include "runtime/support.hpp"
#include "volvelle/eval/perplexity.hpp"

namespace volvelle::test {
namespace {

/// Logits that are a known function of the position and the token there.
class KnownStepper final : public Stepper {
 public:
  static constexpr std::size_t kVocab = 11;
  explicit KnownStepper(float scale) : scale_(scale) {}
  static std::vector<float> row(std::int64_t position, TokenId token, float scale) {
    std::vector<float> out;
    for (std::size_t v = 0; v < kVocab; ++v) {
      out.push_back(scale * std::sin(0.7f * static_cast<float>(position) +
                                     1.3f * static_cast<float>(token) * static_cast<float>(v + 1)));
    }
    return out;
  }
  Status step(std::span<const TokenId> tokens, Logits) override {
    rows_.clear();
    for (const TokenId token : tokens) rows_.push_back(row(length_++, token, scale_));
    return {};
  }
  std::span<const float> logits(std::int64_t i) const override {
    return rows_.at(static_cast<std::size_t>(i));
  }
  std::int64_t length() const override { return length_; }
  Status truncate(std::int64_t length) override { return length_ = length, Status(); }

 private:
  float scale_;
  std::int64_t length_ = 0;
  std::vector<std::vector<float>> rows_;
};

std::vector<TokenId> some_tokens(std::size_t n) {
  std::mt19937 random(3);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % KnownStepper::kVocab);
  return tokens;
}

std::vector<PerplexityRow> measured(std::span<const TokenId> tokens, std::int64_t chunk) {
  std::vector<PerplexityRun> runs;
  runs.push_back({"a", std::make_unique<KnownStepper>(2.0f)});
  runs.push_back({"b", std::make_unique<KnownStepper>(2.2f)});
  return require(measure_perplexity(runs, tokens, {.chunk = chunk, .cancel = {}}, {}));
}

TEST(Perplexity, ScoresEveryTokenButTheFirstOnceWhateverTheChunk) {
  const std::vector<TokenId> tokens = some_tokens(53);
  double nll = 0;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    const auto row = KnownStepper::row(static_cast<std::int64_t>(t), tokens[t], 2.0f);
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x));
    nll += std::log(sum) - row[static_cast<std::size_t>(tokens[t + 1])];
  }
  nll /= 52;
  for (const std::int64_t chunk : {1, 7, 52, 53, 100}) {
    const auto rows = measured(tokens, chunk);
    EXPECT_EQ(rows[0].n_targets, 52);
    EXPECT_NEAR(rows[0].nll, nll, 1e-12);
    EXPECT_NEAR(rows[0].perplexity, std::exp(nll), 1e-11);
    EXPECT_EQ(rows[0].difference.kl_mean, 0.0);
    EXPECT_EQ(rows[0].difference.n, 52);
    EXPECT_GT(rows[1].difference.kl_mean, 1e-4);  // another run differs from the first
    EXPECT_EQ(rows[1].difference.top1_agreement, 1.0);
  }
}

TEST(Perplexity, RefusesTooLittle) {
  std::vector<PerplexityRun> none;
  EXPECT_FALSE(measure_perplexity(none, some_tokens(5), {}, {}).ok());
  std::vector<PerplexityRun> one;
  one.push_back({"a", std::make_unique<KnownStepper>(1.0f)});
  EXPECT_FALSE(measure_perplexity(one, some_tokens(1), {}, {}).ok());
  EXPECT_FALSE(measure_perplexity(one, some_tokens(5), {.chunk = 0, .cancel = {}}, {}).ok());
}

TEST(Perplexity, OfARealModelIsThatOfPlainLlama) {
  const Model model = load_model(kSmolQ41);
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 200);
  Session session = open_session(model, 128);
  EngineStepperOptions engine;
  engine.n_ctx = 256;
  engine.n_threads = 2;
  std::vector<PerplexityRun> runs;
  runs.push_back({"llama", require(make_engine_stepper(model, engine))});
  runs.push_back(
      {"full", make_memory_stepper(session, require(session.begin(MemorySpec::full_memory())))});
  const auto rows = require(measure_perplexity(runs, tokens, {.chunk = 64, .cancel = {}}, {}));
  // Q4_1 weights turn rounding into jumps (docs/numerics.md): two exact paths differ by KL 4e-3.
  EXPECT_LT(rows[1].difference.kl_mean, 2e-2);
  EXPECT_NEAR(rows[1].nll, rows[0].nll, 3e-2);
  EXPECT_GT(rows[0].perplexity, 2.0);
  EXPECT_LT(rows[0].perplexity, 100.0);
}

}  // namespace
}  // namespace volvelle::test
