// generate(): text, tokens, memory and the reason for the end agree, whatever ends it.
#include <algorithm>
#include <cstring>
#include <fstream>

#include "runtime/support.hpp"
#include "volvelle/runtime/generate.hpp"

namespace volvelle::test {
namespace {

/// One thread: the machine is shared, and so few tokens gain nothing from more.
Session open(const Model& model, const CancelToken& cancel = {}) {
  SessionOptions options;
  options.n_threads = 1;
  options.n_ubatch = 64;
  options.cancel = cancel;
  return require(Session::create(model, options));
}

class Generate : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new Model(load_model(kSmolQ41)); }
  static void TearDownTestSuite() { delete model_; }

  Session session_ = open(*model_);
  std::vector<TokenId> prompt_ =
      require(model_->tokenizer().tokenize("Once upon a time, there was a", {})).tokens;

  struct Outcome {
    Generation generation;
    std::string streamed;
    ContextMemory memory;
  };
  Outcome run(GenerationRequest request, const SamplerOptions& options = {}) {
    Outcome out{{}, {}, require(session_.begin(MemorySpec::full_memory()))};
    if (request.prompt.empty()) request.prompt = prompt_;
    request.on_text = [&](std::string_view text) { out.streamed += text; };
    Sampler sampler = require(Sampler::create(*model_, options));
    out.generation = require(generate(session_, out.memory, request, sampler));
    expect_agreement(out, request);
    return out;
  }

  /// What holds for every generation.
  void expect_agreement(const Outcome& out, const GenerationRequest& request) {
    const Generation& g = out.generation;
    EXPECT_EQ(out.streamed, g.text);
    EXPECT_EQ(g.n_predicted, static_cast<std::int64_t>(g.tokens.size()));
    std::vector<TokenId> expected(request.prompt.begin(), request.prompt.end());
    expected.insert(expected.end(), g.tokens.begin(), g.tokens.end());
    // An end token is sampled too, but not among the tokens.
    if (g.stop_reason != "end" && !g.tokens.empty()) expected.pop_back();
    EXPECT_TRUE(std::ranges::equal(out.memory.tokens(), expected));
    std::string bytes;
    for (const TokenId token : g.tokens) bytes += model_->tokenizer().piece(token);
    EXPECT_EQ(g.stop_reason == "stop", !g.stop_string.empty());
    if (g.stop_string.empty()) {
      Utf8Assembler assembler;
      std::string text = assembler.push(bytes);
      EXPECT_EQ(g.text, text + assembler.finish());
    } else {
      EXPECT_TRUE(bytes.starts_with(g.text + g.stop_string)) << bytes;
    }
  }

  static Model* model_;
};
Model* Generate::model_ = nullptr;

TEST_F(Generate, EndsAtTheLimit) {
  const Outcome out = run({.n_predict = 6});
  EXPECT_EQ(out.generation.stop_reason, "limit");
  EXPECT_EQ(out.generation.n_predicted, 6);
  EXPECT_EQ(run({.n_predict = 0}).generation.n_predicted, 0);
}

TEST_F(Generate, EndsAtAStopStringAcrossTokens) {
  const Outcome whole = run({.n_predict = 12});
  ASSERT_EQ(whole.generation.n_predicted, 12);
  // From the middle of the third token into the fourth.
  const Tokenizer& tokenizer = model_->tokenizer();
  std::string before;
  for (int i = 0; i < 3; ++i) before += tokenizer.piece(whole.generation.tokens[i]);
  const std::string fourth = tokenizer.piece(whole.generation.tokens[3]);
  ASSERT_GE(fourth.size(), 2u);
  const std::string stop = before.substr(before.size() - 2) + fourth.substr(0, 2);
  const Outcome out = run({.n_predict = 12, .stops = {"no such text", stop}});
  EXPECT_EQ(out.generation.stop_reason, "stop");
  EXPECT_EQ(out.generation.stop_string, stop);
  EXPECT_EQ(out.generation.text, before.substr(0, before.size() - 2));
  EXPECT_EQ(out.generation.n_predicted, 4);
}

TEST_F(Generate, AStopStringCountsAtTheLimitToo) {
  const Outcome whole = run({.n_predict = 3});
  const std::string last = model_->tokenizer().piece(whole.generation.tokens[2]);
  const Outcome out = run({.n_predict = 3, .stops = {last}});
  EXPECT_EQ(out.generation.stop_reason, "stop");
}

TEST_F(Generate, WhatOnlyBeganAsAStopStringIsText) {
  const Outcome whole = run({.n_predict = 5});
  const std::string end = whole.generation.text.substr(whole.generation.text.size() - 3);
  const Outcome out = run({.n_predict = 5, .stops = {end + " and then something else"}});
  EXPECT_EQ(out.generation.stop_reason, "limit");
  EXPECT_EQ(out.generation.text, whole.generation.text);
}

TEST_F(Generate, StopStringsInThePromptDoNotCount) {
  const Outcome out = run({.n_predict = 3, .stops = {"upon a time, there was a"}});
  EXPECT_EQ(out.generation.stop_reason, "limit");
}

TEST_F(Generate, EndsWithTheModelsEndToken) {
  const std::vector<TokenId> turn =
      require(model_->tokenizer().tokenize(
                  "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n",
                  {.parse_special = true}))
          .tokens;
  // Everything but the end token is forbidden as soon as the answer begins.
  SamplerOptions options;
  options.grammar = "root ::= \"Yes.\"";
  const Outcome out = run({.prompt = turn, .n_predict = 20}, options);
  EXPECT_EQ(out.generation.stop_reason, "end");
  EXPECT_EQ(out.generation.text, "Yes.");
  EXPECT_EQ(out.memory.length(),
            static_cast<std::int64_t>(turn.size()) + out.generation.n_predicted);
}

/// A copy of the wired retriever that was trained for `n` tokens only.
Model model_with_context(const TemporaryFolder& folder, std::uint32_t n) {
  std::string bytes = require(read_text_file(require(find_input(kWired, "models"))));
  const std::string key = "llama.context_length";
  const std::size_t value = bytes.find(key) + key.size() + 4;  // behind the value's type
  std::memcpy(bytes.data() + value, &n, sizeof n);
  std::ofstream(folder / "small.gguf", std::ios::binary) << bytes;
  return require(Model::load(folder / "small.gguf", {}));
}

TEST_F(Generate, EndsAtTheContext) {
  const TemporaryFolder folder;
  const Model model = model_with_context(folder, 16);
  ASSERT_EQ(model.info().context_length, 16);
  Session session = open(model);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  SamplerOptions options;
  options.ignore_eos = true;
  Sampler sampler = require(Sampler::create(model, options));
  const std::vector<TokenId> prompt(10, 6);
  const Generation g =
      require(generate(session, memory, {.prompt = prompt, .n_predict = 50}, sampler));
  EXPECT_EQ(g.stop_reason, "context");
  // Six more are stepped, and what follows the last one is sampled too.
  EXPECT_EQ(g.n_predicted, 7);
  EXPECT_EQ(memory.length(), 16);
}

TEST_F(Generate, AnInterruptKeepsWhatThereIs) {
  CancelToken cancel;
  Session session = open(*model_, cancel);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  std::string streamed;
  GenerationRequest request{.prompt = prompt_, .n_predict = 50};
  request.on_text = [&](std::string_view text) {
    streamed += text;
    if (streamed.size() > 12) cancel.cancel();
  };
  Sampler sampler = require(Sampler::create(*model_, {}));
  const Generation g = require(generate(session, memory, request, sampler));
  EXPECT_EQ(g.stop_reason, "interrupted");
  EXPECT_EQ(g.text, streamed);
  EXPECT_LT(g.n_predicted, 20);
  EXPECT_EQ(memory.length(), static_cast<std::int64_t>(prompt_.size()) + g.n_predicted - 1);
  // While the prompt is read there is nothing to keep, and the memory is as it was.
  ContextMemory other = require(session.begin(MemorySpec::full_memory()));
  Sampler fresh = require(Sampler::create(*model_, {}));
  const auto failed = generate(session, other, request, fresh);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(other.length(), 0);
}

TEST_F(Generate, PenaltiesSeeMemoryAndPrompt) {
  const std::vector<TokenId> tokens =
      require(model_->tokenizer().tokenize("one two three four one two three four one two", {}))
          .tokens;
  const auto first_token = [&](const SamplerOptions& options, std::size_t n_in_memory) {
    ContextMemory memory = require(session_.begin(MemorySpec::full_memory()));
    require(session_.step(memory, std::span(tokens).first(n_in_memory), Logits::kNone));
    Sampler sampler = require(Sampler::create(*model_, options));
    const GenerationRequest request{.prompt = std::span(tokens).subspan(n_in_memory),
                                    .n_predict = 1};
    return require(generate(session_, memory, request, sampler)).tokens.at(0);
  };
  SamplerOptions penalised;
  penalised.presence_penalty = 1000;
  for (const std::size_t n_in_memory : {std::size_t{0}, tokens.size() - 1}) {
    const TokenId repeated = first_token({}, n_in_memory);
    ASSERT_EQ(model_->tokenizer().piece(repeated), " three");
    const TokenId other = first_token(penalised, n_in_memory);
    EXPECT_EQ(std::ranges::count(tokens, other), 0) << n_in_memory;
  }
}

TEST_F(Generate, RefusesAnEmptyPromptAndAnEmptyStop) {
  ContextMemory memory = require(session_.begin(MemorySpec::full_memory()));
  Sampler sampler = require(Sampler::create(*model_, {}));
  EXPECT_FALSE(generate(session_, memory, {.n_predict = 1}, sampler).ok());
  EXPECT_FALSE(
      generate(session_, memory, {.prompt = prompt_, .n_predict = 1, .stops = {""}}, sampler).ok());
  EXPECT_EQ(memory.length(), 0);
}

}  // namespace
}  // namespace volvelle::test
