// Complaints that users of other engines have filed, as tests that keep them from being filed here:
// each is named after the failure it guards against. docs/user_needs.md lists all of them, also
// those that other tests guard.
#include <algorithm>
#include <fstream>
#include <random>

#include "law/store_reader.hpp"
#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::test {
namespace {

using volvelle::testing::read_row;
using volvelle::testing::Side;

constexpr const char* kPlain = "tiny/llama-gqa3.gguf";
constexpr const char* kYarn = "tiny/llama-rope-yarn.gguf";
constexpr const char* kWindowed = "tiny/gemma3.gguf";  // windows of 64 tokens

MemorySpec spec_of(const std::string& text) { return require(parse_memory_spec(text)); }

Session session_for(const Model& model, const std::string& spec, int n_threads = 1) {
  SessionOptions options;
  options.n_threads = n_threads;
  options.n_ubatch = 64;
  options.deterministic = true;
  options.kv = require(kv_types(spec_of(spec)));
  return require(Session::create(model, options));
}

std::vector<TokenId> random_tokens(const Model& model, std::size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(model.info().n_vocab)));
  return tokens;
}

/// Logits behind the last of `tokens`, read under `spec`.
std::vector<float> last_logits(const Model& model, const std::string& spec,
                               std::span<const TokenId> tokens, int n_threads = 1) {
  Session session = session_for(model, spec, n_threads);
  ContextMemory memory = require(session.begin(spec_of(spec)));
  require(session.step(memory, tokens, Logits::kLast));
  return copy(session.logits());
}

MemoryRecord record_of(const ContextMemory& memory) {
  MemoryRecord record;
  record.spec = to_string(memory.spec());
  record.tokens.assign(memory.tokens().begin(), memory.tokens().end());
  record.ranges.resize(record.tokens.size());
  return record;
}

ContextMemory saved_and_loaded(const ContextMemory& memory, const TemporaryFolder& folder) {
  require(save_memory(folder / "m.vmem", record_of(memory), memory));
  MemoryFile file = require(MemoryFile::open(folder / "m.vmem"));
  require(file.verify_rows());
  return require(file.restore());
}

// --- positions -------------------------------------------------------------------------------

// Other engines re-rotate keys when a window moves, which drifts, fails for quantised keys, and is
// wrong under YaRN. Here no row is ever touched: the first layer's rows depend on token and
// position alone, so after a window has moved over 900 tokens they are still those of a memory that
// kept everything.
TEST(Positions, NothingIsShiftedWhenTheWindowMoves) {
  const Model model = load_model(kYarn);
  const std::vector<TokenId> tokens = random_tokens(model, 1000);
  for (const std::string types : {"f16", "q8_0", "q4_0"}) {
    const std::string kv = "+kv(k=" + types + ",v=" + types + ")";
    Session session = session_for(model, "full" + kv);
    ContextMemory all = require(session.begin(spec_of("full" + kv)));
    ContextMemory window = require(session.begin(spec_of("sink(4)+window(64)" + kv)));
    for (ContextMemory* memory : {&all, &window})
      require(session.step(*memory, tokens, Logits::kNone));
    EXPECT_LT(window.row_bytes_used(), all.row_bytes_used() / 2);
    for (const Side side : {Side::kKey, Side::kValue}) {
      for (const std::int64_t row : {0, 3, 930, 950, 999}) {
        const auto kept = read_row(window.groups()[0].store(), 0, side, row);
        ASSERT_TRUE(kept.has_value());
        EXPECT_EQ(kept, read_row(all.groups()[0].store(), 0, side, row)) << types << " " << row;
      }
    }
  }
}

TEST(Positions, TakingBackAndGoingOnEqualsNeverHavingBeenThere) {
  for (const char* name : {kYarn, kWindowed}) {
    const Model model = load_model(name);
    const std::vector<TokenId> tokens = random_tokens(model, 700);
    Session session = session_for(model, "full");
    ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
    require(session.step(memory, std::span(tokens).first(500), Logits::kNone));
    require(session.step(memory, random_tokens(model, 150, 2), Logits::kNone));
    require(memory.truncate(500));
    require(session.step(memory, std::span(tokens).subspan(500), Logits::kLast));
    EXPECT_EQ(copy(session.logits()), last_logits(model, "full", tokens)) << name;
  }
}

// --- storage types ---------------------------------------------------------------------------

std::string types_of(ElementType k, ElementType v) {
  return "+kv(k=" + std::string(to_string(k)) + ",v=" + std::string(to_string(v)) + ")";
}

// A requested type that is silently dropped looks healthy: bytes and answers must both show it.
TEST(StorageTypes, WhatWasAskedForTakesEffect) {
  const Model model = load_model(kPlain);
  const std::vector<TokenId> tokens = random_tokens(model, 300);
  const std::vector<float> exact = last_logits(model, "full+kv(k=f32,v=f32)", tokens);
  const std::vector<float> other =
      last_logits(model, "full+kv(k=f32,v=f32)", random_tokens(model, 300, 2));
  const LayerShape shape = model.info().layers.front();
  double before = 0;
  for (const ElementType type :
       {ElementType::kF16, ElementType::kBF16, ElementType::kQ8_0, ElementType::kQ4_0}) {
    const std::string spec = "full" + types_of(type, type);
    Session session = session_for(model, spec);
    ContextMemory memory = require(session.begin(spec_of(spec)));
    require(session.step(memory, tokens, Logits::kLast));
    const std::size_t row = row_bytes(type, shape.head_dim_k) + row_bytes(type, shape.head_dim_v);
    EXPECT_EQ(memory.row_bytes_used(),
              300 * model.info().layers.size() * static_cast<std::size_t>(shape.n_kv_heads) * row);
    // The coarser the type, the farther from f32; but never garbage.
    const double kl = kl_divergence(exact, session.logits());
    EXPECT_GT(kl, 0.0) << spec;
    EXPECT_LT(kl, kl_divergence(exact, other) / 4) << spec;
    if (type != ElementType::kQ8_0) {
      EXPECT_GT(kl, before) << spec;
    }
    before = kl;
  }
}

// "--kv-bits silently loses the prefilled prompt": the fact stands in the prompt, the question
// comes later, for every pair of types, also with a window.
TEST(StorageTypes, AFactInThePromptIsFoundUnderEveryTypeAndWindow) {
  const Model model = load_model(kWired);
  const auto tokens_of = [&](const std::string& text, bool begin) {
    return require(model.tokenizer().tokenize(text, {.add_special = begin})).tokens;
  };
  std::string text = "f01 k05 v07 f02 k11 v13";
  for (int i = 0; i < 60; ++i) text += " f0" + std::to_string(i % 10);
  for (const char* terms : {"full", "sink(1)+window(100)"}) {
    for (const ElementType k : kElementTypes) {
      for (const ElementType v : kElementTypes) {
        if (k == ElementType::kQ4_0 && v == ElementType::kQ4_0) continue;
        const std::string spec = terms + types_of(k, v);
        Session session = session_for(model, spec);
        ContextMemory memory = require(session.begin(spec_of(spec)));
        require(session.step(memory, tokens_of(text, true), Logits::kNone));
        for (const auto& [key, value] :
             {std::pair{"k05", " v07"}, std::pair{"k11", " v13"}, std::pair{"k33", " none"}}) {
          ContextMemory branch = memory.clone();
          require(session.step(branch, tokens_of(key, false), Logits::kLast));
          const auto best = static_cast<TokenId>(argmax(session.logits()));
          EXPECT_EQ(model.tokenizer().piece(best), value) << spec;
        }
      }
    }
  }
}

// The reference must be what was asked for too, or comparisons with it would mean nothing.
TEST(StorageTypes, TheEngineItselfIsRunWithTheTypeThatWasAskedFor) {
  const Model model = load_model("tiny/llama-dim64.gguf");
  const std::vector<TokenId> tokens = random_tokens(model, 300);
  std::vector<std::vector<float>> rows;
  for (const ElementType type : kElementTypes) {
    EngineStepperOptions options;
    options.n_ctx = 512;
    options.n_threads = 1;
    options.kv_type = type;
    const auto stepper = require(make_engine_stepper(model, options));
    require(stepper->step(tokens, Logits::kLast));
    rows.push_back(copy(stepper->logits(0)));
  }
  // f32 first; the engine's fused attention turns its rows into halves, so these two may be equal.
  for (std::size_t i = 2; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_GT(kl_divergence(rows[j], rows[i]), 1e-9) << i << " " << j;
  }
}

TEST(StorageTypes, LogitsDoNotDependOnTheNumberOfThreads) {
  const Model model = load_model(kPlain);
  const std::vector<TokenId> tokens = random_tokens(model, 400);
  for (const char* spec : {"full", "full+kv(k=q8_0,v=q8_0)", "sink(4)+window(64)"}) {
    const std::vector<float> one = last_logits(model, spec, tokens, 1);
    EXPECT_EQ(last_logits(model, spec, tokens, 2), one) << spec;
    EXPECT_EQ(last_logits(model, spec, tokens, 3), one) << spec;
  }
}

// --- sliding windows -------------------------------------------------------------------------

// Rows that left a window are dropped. Whether one too many goes shows against a memory that keeps
// all of them: at the window's edge, when blocks are freed for the first time, and long after, for
// every type.
TEST(SlidingWindow, DroppingRowsChangesNothingAtAnyLength) {
  const Model model = load_model(kWindowed);
  const std::vector<TokenId> tokens = random_tokens(model, 1500);
  for (const ElementType type : kElementTypes) {
    const std::string types = types_of(type, type);
    Session session = session_for(model, "full" + types);
    ContextMemory drops = require(session.begin(spec_of("full" + types)));
    ContextMemory keeps = require(session.begin(spec_of("full+swa(full)" + types)));
    std::int64_t done = 0;
    for (const std::int64_t length : {63, 64, 65, 66, 319, 320, 321, 600, 1024, 1500}) {
      const auto part = std::span(tokens).subspan(static_cast<std::size_t>(done),
                                                  static_cast<std::size_t>(length - done));
      require(session.step(drops, part, Logits::kLast));
      const std::vector<float> found = copy(session.logits());
      require(session.step(keeps, part, Logits::kLast));
      ASSERT_EQ(found, copy(session.logits())) << types << " at " << length;
      done = length;
    }
    EXPECT_LT(drops.row_bytes_used(), keeps.row_bytes_used() / 2);
  }
}

TEST(SlidingWindow, EachLayerPaysForItsOwnWindowOnly) {
  const Model model = load_model(kWindowed);
  Session session = session_for(model, "full");
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, random_tokens(model, 4000), Logits::kNone));
  std::size_t expected = 0;
  for (const LayerShape& shape : model.info().layers) {
    const std::size_t row = static_cast<std::size_t>(shape.n_kv_heads) * 2 *
                            static_cast<std::size_t>(shape.head_dim_k + shape.head_dim_v);
    // The window, 256 tokens that can be taken back, and blocks of 256 that are not yet free.
    expected += row * (shape.window == 0 ? 4000 : static_cast<std::size_t>(shape.window) + 512);
  }
  EXPECT_LE(memory.row_bytes_used(), expected);
  EXPECT_GE(memory.row_bytes_used(), expected / 2);
}

// A request that was answered once costs only its last tokens when it comes again, also on models
// with sliding windows, where other engines read the whole prompt anew.
TEST(SlidingWindow, SameRequestTwiceReadsNoPromptAgain) {
  const Model model = load_model(kWindowed);
  const std::vector<TokenId> prompt = random_tokens(model, 900);
  Session session = session_for(model, "full");
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, prompt, Logits::kLast));
  const std::vector<float> first = copy(session.logits());
  require(session.step(memory, random_tokens(model, 200, 2), Logits::kNone));  // the answer
  // Back to the prompt without its last two tokens, which are all that is read again.
  require(memory.truncate(898));
  require(session.step(memory, std::span(prompt).subspan(898), Logits::kLast));
  EXPECT_EQ(copy(session.logits()), first);
}

TEST(SlidingWindow, TruncationTooFarBackIsRefusedWithAReason) {
  const Model model = load_model(kWindowed);
  Session session = session_for(model, "full");
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, random_tokens(model, 900), Logits::kNone));
  require(memory.truncate(900 - 256));
  const Status status = memory.truncate(900 - 257);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("window of 64 tokens"), std::string::npos)
      << status.error().message;
  EXPECT_EQ(memory.length(), 900 - 256);
}

// --- save and restore ------------------------------------------------------------------------

TEST(Restore, AnswersAfterReloadingAreTheSameBits) {
  struct Case {
    const char* model;
    const char* spec;
  };
  const TemporaryFolder folder;
  for (const Case& c : {Case{kPlain, "full"}, Case{kPlain, "sink(4)+window(50)"},
                        Case{kPlain, "full+kv(k=q8_0,v=q4_0)"}, Case{kWindowed, "full"},
                        Case{kWindowed, "sink(2)+window(30,block=7)"},
                        Case{"tiny/gemma4.gguf", "full"}, Case{"tiny/gpt-oss.gguf", "full"}}) {
    const Model model = load_model(c.model);
    const std::vector<TokenId> tokens = random_tokens(model, 777);
    Session session = session_for(model, c.spec);
    ContextMemory memory = require(session.begin(spec_of(c.spec)));
    require(session.step(memory, std::span(tokens).first(701), Logits::kNone));
    ContextMemory loaded = saved_and_loaded(memory, folder);
    for (std::size_t at = 701; at < tokens.size(); at += 19) {
      const auto part = std::span(tokens).subspan(at, 19);
      require(session.step(memory, part, Logits::kLast));
      const std::vector<float> expected = copy(session.logits());
      require(session.step(loaded, part, Logits::kLast));
      ASSERT_EQ(copy(session.logits()), expected) << c.model << " " << c.spec << " at " << at;
    }
    loaded = saved_and_loaded(loaded, folder);  // part file, part RAM
    require(session.step(loaded, random_tokens(model, 5, 3), Logits::kLast));
    const std::vector<float> twice = copy(session.logits());
    require(session.step(memory, random_tokens(model, 5, 3), Logits::kLast));
    EXPECT_EQ(copy(session.logits()), twice) << c.model << " " << c.spec;
  }
}

TEST(Restore, ReuseEqualsRecompute) {
  const Model model = load_model(kWindowed);
  const TemporaryFolder folder;
  const std::vector<TokenId> tokens = random_tokens(model, 640);
  Session session = session_for(model, "full");
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, std::span(tokens).first(512), Logits::kNone));
  ContextMemory loaded = saved_and_loaded(memory, folder);
  require(session.step(loaded, std::span(tokens).subspan(512), Logits::kLast));
  EXPECT_EQ(copy(session.logits()), last_logits(model, "full", tokens));
}

TEST(Restore, AFileOfTheFirstFormatGoesOnAsIfItWereNew) {
  const Model model = load_model(kWired);
  MemoryFile file =
      require(MemoryFile::open(std::filesystem::path(VOLVELLE_GOLDEN_DIR) / "memory_v1.vmem"));
  require(file.verify_rows());
  EXPECT_EQ(file.record().model_fingerprint, model.info().fingerprint);
  EXPECT_EQ(file.record().tokenizer_hash, model.info().tokenizer_hash);
  ContextMemory memory = require(file.restore());
  EXPECT_EQ(require(model.tokenizer().tokenize(file.record().text, {.add_special = true})).tokens,
            file.record().tokens);
  Session session = session_for(model, "full");
  const auto word_behind = [&](const std::string& text) {
    ContextMemory branch = memory.clone();
    require(
        session.step(branch, require(model.tokenizer().tokenize(text, {})).tokens, Logits::kLast));
    return model.tokenizer().piece(static_cast<TokenId>(argmax(session.logits())));
  };
  EXPECT_EQ(word_behind("f01 k11"), " v13");
  EXPECT_EQ(word_behind("f01 k40"), " none");
  // The rows are what this version computes for these tokens.
  ContextMemory fresh = require(session.begin(MemorySpec::full_memory()));
  require(session.step(fresh, file.record().tokens, Logits::kNone));
  for (int layer = 0; layer < 2; ++layer) {
    for (std::int64_t row = 0; row < fresh.length(); ++row) {
      const auto now = *read_row(fresh.groups()[0].store(), layer, Side::kValue, row);
      const auto then = *read_row(memory.groups()[0].store(), layer, Side::kValue, row);
      // One unit of the last place of a half, of values up to 64: sums may be ordered otherwise.
      for (std::size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], then[i], 0.0625);
    }
  }
}

TEST(Restore, LoadingComputesNothingAndCopiesNoRow) {
  const Model model = load_model(kWindowed);
  const TemporaryFolder folder;
  Session session = session_for(model, "full");
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, random_tokens(model, 900), Logits::kNone));
  const ContextMemory loaded = saved_and_loaded(memory, folder);
  EXPECT_EQ(loaded.reserved_bytes(), 0u);
  EXPECT_GT(memory.reserved_bytes(), 0u);
}

// --- memory and truncation -------------------------------------------------------------------

TEST(Context, NoTokenIsDroppedToMakeATextFit) {
  const Model model = load_model(kPlain);
  Session session = session_for(model, "sink(4)+window(64)");
  ContextMemory memory = require(session.begin(spec_of("sink(4)+window(64)")));
  const std::int64_t limit = model.info().context_length;
  const std::vector<TokenId> tokens(static_cast<std::size_t>(limit) + 1, 5);
  const Status status = session.step(memory, tokens, Logits::kLast);
  ASSERT_FALSE(status.ok());  // a window is no reason to go beyond the trained positions
  EXPECT_EQ(status.error().code, ErrorCode::kContextExceeded);
  for (const std::int64_t number : {limit + 1, limit})
    EXPECT_NE(status.error().message.find(std::to_string(number)), std::string::npos);
  EXPECT_EQ(memory.length(), 0);
}

TEST(Context, UsedBytesAreWhatTheTokensNeed) {
  const Model model = load_model(kPlain);
  Session session = session_for(model, "full");
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  for (const std::size_t n : {1u, 63u, 1000u}) {
    require(session.step(memory, random_tokens(model, n), Logits::kNone));
    EXPECT_EQ(memory.row_bytes_used(),
              static_cast<std::size_t>(memory.length()) * memory.layout().bytes_per_token());
    EXPECT_GE(memory.reserved_bytes(), memory.row_bytes_used());
  }
  require(memory.truncate(10));
  EXPECT_EQ(memory.row_bytes_used(), 10 * memory.layout().bytes_per_token());
}

// --- RoPE ------------------------------------------------------------------------------------

// The context is what the model says, not what rotary scaling started from.
TEST(Rope, AScaledModelServesItsWholeContext) {
  const Model model = load_model(kYarn);
  EXPECT_EQ(model.info().rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(model.info().rope.original_context, 4096);
  EXPECT_EQ(model.info().context_length, 16384);
  Session session = session_for(model, "sink(4)+window(64)");
  ContextMemory memory = require(session.begin(spec_of("sink(4)+window(64)")));
  require(session.step(memory, random_tokens(model, 5000), Logits::kLast));
  EXPECT_EQ(memory.length(), 5000);
}

// --- tokenizer -------------------------------------------------------------------------------

class PreTokenizer : public ::testing::Test {
 protected:
  /// A model with one metadata key renamed; names of equal length keep the file's layout.
  std::filesystem::path renamed(const std::string& from, const std::string& to) {
    std::string bytes = require(read_text_file(require(find_input(kPlain, "models"))));
    const std::size_t at = bytes.find(from);
    if (at == std::string::npos || from.size() != to.size()) throw std::runtime_error("no key");
    bytes.replace(at, to.size(), to);
    std::ofstream(folder_ / "renamed.gguf", std::ios::binary) << bytes;
    return folder_ / "renamed.gguf";
  }
  std::vector<std::string> warnings_of(const std::filesystem::path& path) {
    std::vector<std::string> warnings;
    ModelOptions options;
    options.log = [&](LogLevel level, std::string_view message) {
      if (level == LogLevel::kWarning && message.starts_with("model: "))
        warnings.emplace_back(message);
    };
    const Model model = require(Model::load(path, options));
    EXPECT_EQ(model.info().warnings, warnings);
    require(Model::load(path, {}));  // takes the sink away
    return warnings;
  }
  TemporaryFolder folder_;
};

TEST_F(PreTokenizer, AMissingOneIsAWarning) {
  const auto warnings = warnings_of(renamed("tokenizer.ggml.pre", "tokenizer.ggml.prX"));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("'tokenizer.ggml.pre' is missing"), std::string::npos);
  EXPECT_NE(warnings[0].find("renamed.gguf"), std::string::npos);
}

TEST_F(PreTokenizer, OthersAreNot) {
  EXPECT_TRUE(warnings_of(require(find_input(kPlain, "models"))).empty());
  EXPECT_TRUE(warnings_of(require(find_input(kWired, "models"))).empty());  // cuts no words
  EXPECT_TRUE(warnings_of(require(find_input("tiny/llama-spm.gguf", "models"))).empty());
  EXPECT_TRUE(warnings_of(require(find_input(kSmolQ41, "models"))).empty());
}

}  // namespace
}  // namespace volvelle::test
