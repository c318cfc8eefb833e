// Every kind of model that is served gives what plain llama.cpp gives.
//
// The models are tiny, with random weights (tools/make_tiny_models.py): one for each head shape,
// rotary scaling, norm, bias, window, sink and sharing of rows. Three runs of the same tokens are
// compared: llama.cpp without flash attention (the reference), llama.cpp with it, and our memory.
//
//   bound: KL(reference || ours) <= 5 KL(reference || flash) + floor, and likewise for the largest
//   logit difference; floor: what remains when two exact f32 runs only order their sums differently
//   with f32 rows also: KL(reference || ours) <= floor, which is 10,000 times sharper
//
// The last positions are read both ways: decoded one by one, and in one piece of a prefill.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>

#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle::test {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kCompared = 64;
constexpr int kUbatch = 128;
constexpr double kPathFactor = 5.0;

struct Floor {
  double kl;
  double logit;
};
// Logits of about 2, from at most 4 layers of f32 sums, each relative 2^-24, amplified by peaky
// attention. Measured: KL up to 5e-12, logits up to 3e-5.
constexpr Floor kSums = {1e-10, 3e-4};
// The engine's GELU reads a table over f16 inputs, so a last bit may become a step of 2^-11.
// Measured: KL up to 7e-8 (gemma4: two of them in each of 6 layers), logits up to 6e-4.
constexpr Floor kTable = {3e-7, 4e-3};
// The same in 18 layers, on logits of about 30. Measured: KL up to 3e-7, logits up to 0.03.
constexpr Floor kTableDeep = {2e-6, 0.15};

struct Kind {
  const char* name;
  Floor floor = kSums;
  std::int64_t window = 0;  // of its sliding-window layers
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

constexpr Kind kPlain[] = {
    {"llama-mha"},
    {"llama-mqa"},
    {"llama-gqa3"},
    {"llama-gqa7"},
    {"llama-gqa8"},
    {"llama-dim64"},
    {"llama-dim80"},
    {"llama-dim96"},
    {"llama-dim100"},
    {"llama-dim128"},
    {"llama-dim256"},
    {"llama-tied"},
    {"llama-spm"},
    {"llama-moe"},
    {"openelm"},           // heads and widths differ from layer to layer
    {"plamo3-k192-v128"},  // values narrower than keys
    {"plamo3-k64-v32"},
    {"llama-rope-linear"},
    {"llama-rope-base"},
    {"llama-rope-yarn"},
    {"llama-rope-yarn-mscale"},
    {"llama-rope-llama3"},
    {"qwen2"},
    {"qwen2vl"},
    {"qwen3"},
    {"phi3"},
    {"phi3-partial"},
    {"stablelm"},
    {"starcoder2", kTable},
    {"gptneox", kTable},
    {"olmo2"},
    {"exaone4"},
    {"glm4"},
    {"granite"},
    {"granite-nope"},
};
constexpr Kind kWindowed[] = {
    {"gemma2", kTable, 64},  // soft caps
    {"gemma3", kTable, 64},  // QK-norm, a rotary base of its own in windowed layers
    {"gemma4", kTable, 64},  // the last layers read rows of earlier layers; head sizes differ
    {"gpt-oss", kSums, 64},  // learned sinks, experts
    {"cohere2", kSums, 64}, {"olmo3", kSums, 64},
    {"mimo2", kSums, 64},  // sinks, values narrower than keys, KV heads differ
};

std::string path_of(const Kind& kind) { return "tiny/" + std::string(kind.name) + ".gguf"; }

/// Tokens of random printable text.
std::vector<TokenId> random_tokens(const Model& model, std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> character(' ', '~');
  std::string text;
  for (std::size_t i = 0; i < 3 * n; ++i) text += static_cast<char>(character(random));
  std::vector<TokenId> tokens =
      require(model.tokenizer().tokenize(text, {.add_special = true})).tokens;
  if (tokens.size() < n) throw std::runtime_error("too few tokens");
  tokens.resize(n);
  return tokens;
}

/// Positions whose logits are compared: [begin, end).
struct Range {
  std::int64_t begin;
  std::int64_t end;
};
enum class Reading { kDecode, kPrefill };

using Rows = std::vector<std::vector<float>>;

/// Runs all tokens, in pieces of kUbatch outside of the ranges and as `reading` says inside.
Rows logits_of(Stepper& stepper, std::span<const TokenId> tokens, std::span<const Range> ranges,
               Reading reading) {
  Rows rows;
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  std::int64_t done = 0;
  for (const Range& range : ranges) {
    while (done < range.begin) {
      const std::int64_t end = std::min(done + kUbatch, range.begin);
      require(stepper.step(part(done, end), Logits::kNone));
      done = end;
    }
    while (done < range.end) {
      const std::int64_t end = reading == Reading::kDecode ? done + 1 : range.end;
      require(stepper.step(part(done, end), Logits::kAll));
      for (std::int64_t i = 0; i < end - done; ++i) rows.push_back(copy(stepper.logits(i)));
      done = end;
    }
  }
  return rows;
}

struct Difference {
  double kl = 0;  // mean
  double logit = 0;
};

Difference difference(const Rows& reference, const Rows& candidate) {
  Difference result;
  EXPECT_EQ(reference.size(), candidate.size());
  for (std::size_t i = 0; i < reference.size(); ++i) {
    result.kl += kl_divergence(reference[i], candidate[i]) / static_cast<double>(reference.size());
    for (std::size_t j = 0; j < reference[i].size(); ++j) {
      EXPECT_TRUE(std::isfinite(candidate[i][j]));
      result.logit =
          std::max(result.logit, std::abs(double(reference[i][j]) - double(candidate[i][j])));
    }
  }
  return result;
}

/// A model and how it is run. Fresh steppers each time: a context is cheap for a tiny model.
class Runs {
 public:
  Runs(const std::string& model, Floor floor, int n_threads)
      : model_(load_model(model)), floor_(floor), threads_(n_threads) {}

  const Model& model() const { return model_; }

  Rows engine(bool flash, ElementType type, std::span<const TokenId> tokens,
              std::span<const Range> ranges, Reading reading) const {
    EngineStepperOptions options;
    options.n_ctx = static_cast<std::int64_t>(tokens.size());
    options.n_threads = threads_;
    options.n_ubatch = kUbatch;
    options.flash_attention = flash;
    options.kv_type = type;
    const auto stepper = require(make_engine_stepper(model_, options));
    return logits_of(*stepper, tokens, ranges, reading);
  }

  Rows ours(ElementType type, std::span<const TokenId> tokens, std::span<const Range> ranges,
            Reading reading) const {
    const KvTypes kv{type, type};
    SessionOptions options;
    options.n_threads = threads_;
    options.n_ubatch = kUbatch;
    options.kv = kv;
    Session session = require(Session::create(model_, options));
    const auto stepper = make_memory_stepper(session, require(session.begin(full_with(kv))));
    return logits_of(*stepper, tokens, ranges, reading);
  }

  void expect_agreement(ElementType type, std::span<const TokenId> tokens,
                        std::span<const Range> ranges, Reading reading) const {
    const Rows reference = engine(false, type, tokens, ranges, reading);
    const Difference paths = difference(reference, engine(true, type, tokens, ranges, reading));
    const Difference ours_to_reference = difference(reference, ours(type, tokens, ranges, reading));
    SCOPED_TRACE(std::to_string(tokens.size()) + " tokens, " + std::string(to_string(type)) +
                 (reading == Reading::kDecode ? ", decoded" : ", prefill"));
    EXPECT_LE(ours_to_reference.kl, kPathFactor * paths.kl + floor_.kl);
    EXPECT_LE(ours_to_reference.logit, kPathFactor * paths.logit + floor_.logit);
    if (type == ElementType::kF32) {
      EXPECT_LE(ours_to_reference.kl, floor_.kl);
      EXPECT_LE(ours_to_reference.logit, floor_.logit);
    }
  }

 private:
  Model model_;
  Floor floor_;
  int threads_;
};

class Architecture : public testing::TestWithParam<Kind> {};

TEST_P(Architecture, AgreesWithPlainEngine) {
  const Kind kind = GetParam();
  const Runs runs(path_of(kind), kind.floor, 1);
  std::vector<std::int64_t> lengths = {kTokens};
  if (kind.window > 0) lengths = {kind.window - 1, kind.window, kind.window + 1, kTokens};
  for (const std::int64_t length : lengths) {
    const auto tokens = random_tokens(runs.model(), static_cast<std::size_t>(length), 1);
    const Range last{std::max<std::int64_t>(1, length - kCompared), length};
    for (const ElementType type : {ElementType::kF32, ElementType::kF16}) {
      for (const Reading reading : {Reading::kDecode, Reading::kPrefill}) {
        runs.expect_agreement(type, tokens, {&last, 1}, reading);
      }
    }
  }
}

TEST_P(Architecture, AnotherTokenOfThePastShows) {  // so the comparison above can fail
  const Runs runs(path_of(GetParam()), GetParam().floor, 1);
  const auto tokens = random_tokens(runs.model(), kTokens, 1);
  auto changed = tokens;
  changed[100] = tokens[101];
  const Range last{kTokens - kCompared, kTokens};
  const Rows before = runs.ours(ElementType::kF32, tokens, {&last, 1}, Reading::kPrefill);
  const Rows after = runs.ours(ElementType::kF32, changed, {&last, 1}, Reading::kPrefill);
  EXPECT_GT(difference(before, after).kl, 100 * GetParam().floor.kl);
}

std::string test_name(const testing::TestParamInfo<Kind>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Plain, Architecture, testing::ValuesIn(kPlain), test_name);
INSTANTIATE_TEST_SUITE_P(Windowed, Architecture, testing::ValuesIn(kWindowed), test_name);

TEST(Architectures, EveryTinyModelIsServedHereOrRefusedByName) {
  std::set<std::string> known = {"mpt",
                                 "bloom",
                                 "deepseek2",
                                 "bert",
                                 "mamba",
                                 "lfm2",
                                 "llada",
                                 "llama4",
                                 "phi3-longrope",
                                 "split-00001-of-00002",
                                 "split-00002-of-00002"};
  for (const Kind& kind : kPlain) known.insert(kind.name);
  for (const Kind& kind : kWindowed) known.insert(kind.name);
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(cache_folder() / "models/tiny")) {
    if (entry.path().extension() == ".gguf") found.insert(entry.path().stem().string());
  }
  EXPECT_EQ(found, known);
}

TEST(Architectures, GemmaAgreesWithPlainEngineAroundItsWindow) {
  if (!find_input(kGemmaF32, "models").ok()) GTEST_SKIP() << "Gemma was not accepted in setup";
  constexpr std::int64_t kWindow = 512;
  constexpr std::int64_t kBeyond = 1024;
  const bool full = std::getenv("VOLVELLE_FULL") != nullptr;
  const std::int64_t compared = full ? kCompared : 8;
  const Runs runs(kGemmaF32, kTableDeep, 2);
  const auto tokens =
      book_tokens(runs.model(), "persuasion.txt", static_cast<std::size_t>(kBeyond));
  // The logits of a text's beginning are those of the whole text, so one run has every length:
  // window - 1, window and window + 1 tokens, and 1,024.
  const Range ranges[] = {{kWindow + 1 - compared, kWindow + 1}, {kBeyond - compared, kBeyond}};
  runs.expect_agreement(ElementType::kF32, tokens, ranges, Reading::kDecode);
  if (!full) return;
  runs.expect_agreement(ElementType::kF32, tokens, ranges, Reading::kPrefill);
  runs.expect_agreement(ElementType::kF16, tokens, ranges, Reading::kDecode);
  constexpr std::int64_t kLong = 8192;
  const auto text = book_tokens(runs.model(), "persuasion.txt", static_cast<std::size_t>(kLong));
  const Range last{kLong - compared, kLong};
  runs.expect_agreement(ElementType::kF32, text, {&last, 1}, Reading::kDecode);
}

}  // namespace
}  // namespace volvelle::test
