// Codes are made of a memory once and again when it has grown by half. Just before that they know
// the first two thirds alone: how much worse do they read than codes of all?
//
// f32 weights, so that rounding elsewhere (1e-6) hides nothing. Reference: exact reads.
#include <cstdio>

#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle::test {
namespace {

constexpr std::size_t kMade = 2048;
constexpr std::size_t kEnd = kMade + kMade / 2 - 1;
constexpr std::size_t kRead = 32;  // decoded one by one at the end

struct Age {
  double kl = 0.0;
  double variation = 0.0;
  double output_error = 0.0;
};

/// Codes made at `made_at` tokens and used for the last kRead of kEnd.
Age read_at(const Model& model, std::span<const TokenId> tokens, std::size_t made_at,
            const std::vector<std::vector<float>>& exact) {
  SessionOptions options;
  options.n_threads = 2;
  options.audit_reads = true;
  Session session = require(Session::create(model, options));
  ContextMemory memory = require(session.begin(require(parse_memory_spec("full+topk(k=128)"))));
  require(session.step(memory, tokens.first(made_at), Logits::kNone));
  require(session.prepare_index(memory));
  require(session.step(memory, tokens.subspan(made_at, kEnd - kRead - made_at), Logits::kNone));
  (void)session.take_read_statistics();
  Age age;
  for (std::size_t i = 0; i < kRead; ++i) {
    require(session.step(memory, tokens.subspan(kEnd - kRead + i, 1), Logits::kLast));
    age.kl += kl_divergence(exact[i], session.logits()) / static_cast<double>(kRead);
  }
  EXPECT_EQ(memory.index()->made_at(), static_cast<std::int64_t>(made_at));
  const ReadStatistics reads = session.take_read_statistics();
  age.variation = reads.sum_variation / static_cast<double>(reads.audited);
  age.output_error = reads.sum_output_error / static_cast<double>(reads.audited);
  std::printf("made at %zu: KL %.3g, variation %.4f, output error %.4f\n", made_at, age.kl,
              age.variation, age.output_error);
  return age;
}

TEST(IndexAge, CodesAboutToBeMadeAgainStillServe) {
  const Model model = load_model(kSmolF32);
  const std::vector<TokenId> tokens = book_tokens(model, "persuasion.txt", kEnd);
  std::vector<std::vector<float>> exact;
  {
    Session session = open_session(model, 512);
    ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
    require(session.step(memory, std::span(tokens).first(kEnd - kRead), Logits::kNone));
    for (std::size_t i = 0; i < kRead; ++i) {
      require(session.step(memory, std::span(tokens).subspan(kEnd - kRead + i, 1), Logits::kLast));
      exact.push_back(copy(session.logits()));
    }
  }
  const Age fresh = read_at(model, tokens, kEnd - kRead, exact);
  const Age old = read_at(model, tokens, kMade, exact);
  EXPECT_GT(old.variation, fresh.variation);  // or both had the same codes
  EXPECT_LT(old.variation, 2.5 * fresh.variation);
  EXPECT_LT(old.kl, 1e-3);  // what is asked of the default budget
}

}  // namespace
}  // namespace volvelle::test
