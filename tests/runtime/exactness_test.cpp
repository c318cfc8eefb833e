// Our memory against plain llama.cpp on a real book, and against itself under other chunkings.
//
// The bound for "exact" is not a chosen number: it is five times the divergence between llama.cpp's
// own two attention paths (flash and non-flash), measured in the same run on the same tokens.
#include <thread>
#include "runtime/support.hpp"

#include "volvelle/attention/fold.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle::test {
namespace {

constexpr std::int64_t kTokens = 700;
constexpr std::int64_t kLast = 48;

std::unique_ptr<Stepper> engine(const Model& model, bool flash) {
  EngineStepperOptions options;
  options.n_ctx = 1024;
  options.n_threads = 2;
  options.flash_attention = flash;
  return require(make_engine_stepper(model, options));
}

/// Logits after folding `tokens` by chunks of `chunk`.
std::vector<float> fold_logits(const Model& model, std::span<const TokenId> tokens, int n_ubatch,
                               std::int64_t chunk, bool deterministic) {
  Session session = open_session(model, n_ubatch, deterministic);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(fold_run(memory, tokens, chunk,
                   [&](ContextMemory& m, std::span<const TokenId> part, bool last) {
                     return session.step(m, part, last ? Logits::kLast : Logits::kNone);
                   }));
  return copy(session.logits());
}

TEST(Exactness, AgreesWithPlainEngineWithinFiveTimesItsTwoPathDifference) {
  const Model model = load_model(kSmolF32);
  const std::vector<TokenId> tokens = book_tokens(model, "persuasion.txt", kTokens);

  const Fidelity two_path =
      require(compare(*engine(model, true), *engine(model, false), tokens, kLast, 256, {}));
  Session session = open_session(model, 256);
  const auto ours = make_memory_stepper(session, require(session.begin(MemorySpec::full_memory())));
  const Fidelity fidelity = require(compare(*engine(model, true), *ours, tokens, kLast, 256, {}));

  RecordProperty("two_path_kl", std::to_string(two_path.kl_mean));
  RecordProperty("kl", std::to_string(fidelity.kl_mean));
  EXPECT_EQ(fidelity.n, kLast);
  EXPECT_GT(two_path.kl_mean, 0.0);  // else the bound would mean nothing
  EXPECT_LE(fidelity.kl_mean, 5.0 * two_path.kl_mean);
  EXPECT_LE(fidelity.kl_max, 1e-3);
  EXPECT_EQ(fidelity.top1_agreement, 1.0);
}

TEST(Exactness, AnotherTokenOfThePastChangesTheAnswer) {  // the comparison above can fail
  const Model model = load_model(kSmolF32);
  const std::vector<TokenId> tokens = book_tokens(model, "persuasion.txt", 300);
  std::vector<TokenId> changed = tokens;
  changed[20] = tokens[40];
  const std::vector<float> a = fold_logits(model, tokens, 256, 256, false);
  const std::vector<float> b = fold_logits(model, changed, 256, 256, false);
  EXPECT_GT(kl_divergence(a, b), 1e-4);
}

TEST(Exactness, UbatchSizesAreBitEqualInDeterministicMode) {
  const Model model = load_model(kSmolF32);
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 600);
  const std::vector<float> expected = fold_logits(model, tokens, 512, 512, true);
  EXPECT_EQ(fold_logits(model, tokens, 64, 64, true), expected);
  EXPECT_EQ(fold_logits(model, tokens, 256, 256, true), expected);
}

TEST(Exactness, SmallChunksAgreeUpToRounding) {
  // One and seven tokens take other matrix kernels in the engine, so bits may differ: KL at most
  // 1e-5 (the requirement).
  const Model model = load_model(kSmolF32);
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 200);
  const std::vector<float> expected = fold_logits(model, tokens, 256, 256, true);
  EXPECT_LE(kl_divergence(expected, fold_logits(model, tokens, 256, 1, false)), 1e-5);
  EXPECT_LE(kl_divergence(expected, fold_logits(model, tokens, 256, 7, false)), 1e-5);
}

TEST(Exactness, StoreInF32IsAtLeastAsCloseAsF16) {
  const Model model = load_model(kSmolF32);
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 300);
  const KvTypes f32{ElementType::kF32, ElementType::kF32};
  Session session = open_session(model, 256, false, f32);
  ContextMemory memory = require(session.begin(full_with(f32)));
  require(session.step(memory, tokens, Logits::kLast));
  EXPECT_EQ(memory.groups().front().store().row_bytes_used(),
            tokens.size() * memory.layout().bytes_per_token());
  EXPECT_LE(kl_divergence(session.logits(), fold_logits(model, tokens, 256, 256, false)), 1e-4);
}

TEST(Exactness, TwoSessionsOnTwoThreadsDoNotMeet) {
  const Model model = load_model(kWired);
  const auto run = [&](const std::string& text) {
    SessionOptions options;
    options.n_threads = 1;
    options.n_ubatch = 64;
    Session session = require(Session::create(model, options));
    std::vector<float> logits;
    for (int i = 0; i < 20; ++i) {
      ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
      const auto tokens = require(model.tokenizer().tokenize(text, {.add_special = true})).tokens;
      require(session.step(memory, tokens, Logits::kLast));
      logits = copy(session.logits());
    }
    return logits;
  };
  const std::string text_a = "f01 k05 v07 f02 f03 k05";
  const std::string text_b = "f01 k09 v61 f02 f03 f04 f05 k09";
  const std::vector<float> alone_a = run(text_a);
  const std::vector<float> alone_b = run(text_b);
  std::vector<float> together_a;
  std::thread other([&] { together_a = run(text_a); });
  const std::vector<float> together_b = run(text_b);
  other.join();
  EXPECT_EQ(together_a, alone_a);
  EXPECT_EQ(together_b, alone_b);
}

}  // namespace
}  // namespace volvelle::test
