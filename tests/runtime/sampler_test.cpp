// Samplers: the chain is the one that llama.cpp's own programs build. The reference is the engine's
// chain, put together here by hand, one list per case; logits are random (seeded), so no model
// runs.
#include "volvelle/runtime/sampler.hpp"

#include <llama.h>

#include <cmath>
#include <memory>
#include <random>
#include <set>

#include "runtime/model_impl.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

using Tokens = std::vector<TokenId>;
using Logits = std::vector<float>;

constexpr int kLively = 60;  // tokens that are likely, so that they come again and penalties bite
constexpr int kSteps = 60;

const Model& model() {
  static const Model loaded = load_model(kSmolQ41);
  return loaded;
}
const llama_vocab* vocab() { return llama_model_get_vocab(model().impl().engine_model.get()); }

/// Logits of step i: a few tokens far above a low noise.
Logits logits_of(int i) {
  std::mt19937 random(1000 + i);
  std::normal_distribution<float> noise(-8.0f, 1.0f);
  std::normal_distribution<float> lively(0.0f, 2.0f);
  Logits logits(static_cast<std::size_t>(model().info().n_vocab));
  for (float& value : logits) value = noise(random);
  for (int k = 0; k < kLively; ++k) logits[static_cast<std::size_t>(500 + 3 * k)] = lively(random);
  return logits;
}

const Tokens& prompt() {
  static const Tokens tokens{500, 503, 506, 500, 503, 506, 500, 503};
  return tokens;
}

Tokens sample_ours(const SamplerOptions& options, int n = kSteps) {
  Sampler sampler = require(Sampler::create(model(), options));
  sampler.accept_prompt(prompt());
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(require(sampler.sample(logits_of(i))));
  return tokens;
}

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using Chain = std::unique_ptr<llama_sampler, FreeSampler>;

Chain chain_of(std::initializer_list<llama_sampler*> steps) {
  Chain chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  for (llama_sampler* step : steps) llama_sampler_chain_add(chain.get(), step);
  return chain;
}

llama_token_data_array candidates_of(const Logits& logits, std::vector<llama_token_data>& data) {
  data.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    data.push_back({static_cast<llama_token>(i), logits[i], 0.0f});
  return {data.data(), data.size(), -1, false};
}

/// llama.cpp's loop: the chain; if the grammar refuses the token, grammar and chain once more.
Tokens sample_engine(const Chain& chain, const Chain& grammar = {}, int n = kSteps) {
  for (const TokenId token : prompt()) llama_sampler_accept(chain.get(), token);
  Tokens tokens;
  std::vector<llama_token_data> data;
  for (int i = 0; i < n; ++i) {
    const Logits logits = logits_of(i);
    llama_token_data_array array = candidates_of(logits, data);
    llama_sampler_apply(chain.get(), &array);
    llama_token token = array.data[array.selected].id;
    if (grammar) {
      llama_token_data one{token, 1.0f, 0.0f};
      llama_token_data_array single{&one, 1, -1, false};
      llama_sampler_apply(grammar.get(), &single);
      if (std::isinf(one.logit)) {
        array = candidates_of(logits, data);
        llama_sampler_apply(grammar.get(), &array);
        llama_sampler_apply(chain.get(), &array);
        token = array.data[array.selected].id;
      }
      llama_sampler_accept(grammar.get(), token);
    }
    llama_sampler_accept(chain.get(), token);
    tokens.push_back(token);
  }
  return tokens;
}

llama_sampler* no_penalties() {
  return llama_sampler_init_penalties(llama_vocab_n_tokens(vocab()), 64, 1, 0, 0);
}
llama_sampler* dry(float multiplier) {
  const char* breakers[] = {"\n", ":", "\"", "*"};
  return llama_sampler_init_dry(vocab(), multiplier, 1.75f, 2, 64, breakers, 4);
}

TEST(Sampler, DefaultsAreThoseOfLlamaCppButForTheTemperature) {
  EXPECT_EQ(
      sample_ours({.temperature = 0.8f, .seed = 5}),
      sample_engine(chain_of(
          {no_penalties(), dry(0), llama_sampler_init_top_n_sigma(-1), llama_sampler_init_top_k(40),
           llama_sampler_init_typical(1, 0), llama_sampler_init_top_p(0.95f, 0),
           llama_sampler_init_min_p(0.05f, 0), llama_sampler_init_xtc(0, 0.1f, 0, 5),
           llama_sampler_init_temp_ext(0.8f, 0, 1), llama_sampler_init_dist(5)})));
}

TEST(Sampler, EveryStepTogetherAndInOrder) {
  SamplerOptions options{.temperature = 1.2f, .seed = 9};
  options.repeat_penalty = 1.3f;
  options.frequency_penalty = 0.2f;
  options.presence_penalty = 0.4f;
  options.repeat_last_n = 20;
  options.dry_multiplier = 0.8f;
  options.top_n_sigma = 30;
  options.top_k = 50;
  options.typical_p = 0.9f;
  options.top_p = 0.97f;
  options.min_p = 0.01f;
  options.xtc_probability = 0.5f;
  options.xtc_threshold = 0.05f;
  options.dynatemp_range = 0.5f;
  options.dynatemp_exponent = 1.5f;
  EXPECT_EQ(sample_ours(options),
            sample_engine(chain_of(
                {llama_sampler_init_penalties(llama_vocab_n_tokens(vocab()), 20, 1.3f, 0.2f, 0.4f),
                 dry(0.8f), llama_sampler_init_top_n_sigma(30), llama_sampler_init_top_k(50),
                 llama_sampler_init_typical(0.9f, 0), llama_sampler_init_top_p(0.97f, 0),
                 llama_sampler_init_min_p(0.01f, 0), llama_sampler_init_xtc(0.5f, 0.05f, 0, 9),
                 llama_sampler_init_temp_ext(1.2f, 0.5f, 1.5f), llama_sampler_init_dist(9)})));
}

TEST(Sampler, TheOrderIsTheOneGiven) {
  SamplerOptions options{.temperature = 2.5f, .seed = 3};
  options.order = require(parse_sampler_order("temperature;min_p"));
  EXPECT_EQ(sample_ours(options), sample_engine(chain_of({llama_sampler_init_temp_ext(2.5f, 0, 1),
                                                          llama_sampler_init_min_p(0.05f, 0),
                                                          llama_sampler_init_dist(3)})));
  options.order = require(parse_sampler_order("min_p;temperature"));
  EXPECT_EQ(sample_ours(options), sample_engine(chain_of({llama_sampler_init_min_p(0.05f, 0),
                                                          llama_sampler_init_temp_ext(2.5f, 0, 1),
                                                          llama_sampler_init_dist(3)})));
}

TEST(Sampler, Mirostat) {
  SamplerOptions options{.temperature = 0.9f, .seed = 4};
  options.mirostat_lr = 0.2f;
  options.mirostat_entropy = 3;
  options.mirostat = 1;
  EXPECT_EQ(sample_ours(options),
            sample_engine(chain_of(
                {llama_sampler_init_temp(0.9f),
                 llama_sampler_init_mirostat(llama_vocab_n_tokens(vocab()), 4, 3, 0.2f, 100)})));
  options.mirostat = 2;
  EXPECT_EQ(sample_ours(options),
            sample_engine(chain_of(
                {llama_sampler_init_temp(0.9f), llama_sampler_init_mirostat_v2(4, 3, 0.2f)})));
}

TEST(Sampler, AdaptiveP) {
  SamplerOptions options{.temperature = 1, .seed = 6};
  options.order = require(parse_sampler_order("adaptive-p;min-p;temp"));
  options.adaptive_target = 0.4f;
  options.adaptive_decay = 0.8f;
  EXPECT_EQ(sample_ours(options),
            sample_engine(
                chain_of({llama_sampler_init_min_p(0.05f, 0), llama_sampler_init_temp_ext(1, 0, 1),
                          llama_sampler_init_adaptive_p(0.4f, 0.8f, 6)})));
}

TEST(Sampler, TemperatureZeroIsTheFullChainAtZero) {
  const auto at_zero = [](llama_sampler* penalties, float dry_multiplier, float typical,
                          float xtc) {
    return chain_of({penalties, dry(dry_multiplier), llama_sampler_init_top_n_sigma(-1),
                     llama_sampler_init_top_k(40), llama_sampler_init_typical(typical, 0),
                     llama_sampler_init_top_p(0.95f, 0), llama_sampler_init_min_p(0.05f, 0),
                     llama_sampler_init_xtc(xtc, 0.1f, 0, 0), llama_sampler_init_temp_ext(0, 0, 1),
                     llama_sampler_init_dist(0)});
  };
  SamplerOptions options;
  const Tokens plain = sample_ours(options);
  EXPECT_EQ(plain, sample_engine(at_zero(no_penalties(), 0, 1, 0)));
  options.repeat_penalty = 1.5f;
  options.dry_multiplier = 2;
  const Tokens penalised = sample_ours(options);
  EXPECT_NE(penalised, plain);
  EXPECT_EQ(
      penalised,
      sample_engine(at_zero(
          llama_sampler_init_penalties(llama_vocab_n_tokens(vocab()), 64, 1.5f, 0, 0), 2, 1, 0)));
  options = {};
  options.typical_p = 0.3f;
  options.xtc_probability = 0.5f;
  EXPECT_EQ(sample_ours(options), sample_engine(at_zero(no_penalties(), 0, 0.3f, 0.5f)));
}

TEST(Sampler, BiasesAndEndTokens) {
  SamplerOptions options{.temperature = 1, .seed = 8};
  const Tokens before = sample_ours(options);
  options.logit_bias = {{before[0], -INFINITY}, {777, 30.0f}};
  options.ignore_eos = true;
  std::vector<llama_logit_bias> biases{{before[0], -INFINITY}, {777, 30.0f}};
  for (llama_token i = 0; i < llama_vocab_n_tokens(vocab()); ++i)
    if (llama_vocab_is_eog(vocab(), i)) biases.push_back({i, -INFINITY});
  ASSERT_GT(biases.size(), 2u);
  options.order = {SamplerStep::kTopK};
  const Tokens biased = sample_ours(options);
  EXPECT_EQ(biased,
            sample_engine(chain_of(
                {llama_sampler_init_logit_bias(llama_vocab_n_tokens(vocab()),
                                               static_cast<int>(biases.size()), biases.data()),
                 llama_sampler_init_top_k(40), llama_sampler_init_dist(8)})));
  EXPECT_EQ(biased, Tokens(biased.size(), 777));
}

TEST(Sampler, GrammarAsInLlamaCpp) {
  const std::string text = "root ::= [a-m ]+ | [0-9]+";
  SamplerOptions options{.temperature = 1, .seed = 2};
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  options.grammar = text;
  const Tokens ours = sample_ours(options, 20);
  const Chain chain = chain_of({llama_sampler_init_temp_ext(1, 0, 1), llama_sampler_init_dist(2)});
  const Chain grammar(llama_sampler_init_grammar(vocab(), text.c_str(), "root"));
  EXPECT_EQ(ours, sample_engine(chain, grammar, 20));
  std::string answer;
  for (const TokenId token : ours) answer += model().tokenizer().piece(token);
  EXPECT_EQ(answer.find_first_not_of("abcdefghijklm "), std::string::npos) << answer;
}

TEST(Sampler, SameSeedSameTokensAndOtherSeedsOthers) {
  std::set<Tokens> seen;
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    const Tokens first = sample_ours({.temperature = 1.5f, .seed = seed});
    EXPECT_EQ(first, sample_ours({.temperature = 1.5f, .seed = seed}));
    seen.insert(first);
  }
  EXPECT_EQ(seen.size(), 5u);
}

TEST(Sampler, NoOptionIsDropped) {
  const SamplerOptions base{.temperature = 1.5f, .seed = 1};
  const Tokens unchanged = sample_ours(base);
  const auto changes = [&](const char* what, auto change) {
    SamplerOptions options = base;
    change(options);
    EXPECT_NE(sample_ours(options), unchanged) << what;
  };
  changes("temperature", [](auto& o) { o.temperature = 0.5f; });
  changes("top_k", [](auto& o) { o.top_k = 2; });
  changes("top_p", [](auto& o) { o.top_p = 0.3f; });
  changes("min_p", [](auto& o) { o.min_p = 0.5f; });
  changes("typical_p", [](auto& o) { o.typical_p = 0.3f; });
  changes("top_n_sigma", [](auto& o) { o.top_n_sigma = 1; });
  changes("xtc", [](auto& o) { o.xtc_probability = 1; });
  changes("repeat_penalty", [](auto& o) { o.repeat_penalty = 3; });
  changes("frequency_penalty", [](auto& o) { o.frequency_penalty = 3; });
  changes("presence_penalty", [](auto& o) { o.presence_penalty = 3; });
  changes("dry", [](auto& o) {
    o.dry_multiplier = 20;
    o.dry_allowed_length = 0;
  });
  changes("dynatemp", [](auto& o) { o.dynatemp_range = 1.5f; });
  changes("mirostat", [](auto& o) { o.mirostat = 2; });
  changes("logit_bias", [](auto& o) { o.logit_bias = {{500, 9.0f}}; });
  changes("grammar", [](auto& o) { o.grammar = "root ::= [a-z]+"; });
  changes("order", [](auto& o) { o.order = {SamplerStep::kTopP}; });
}

TEST(Sampler, PenaltiesSeeThePrompt) {
  SamplerOptions options;
  options.presence_penalty = 100;
  const Logits logits = logits_of(0);
  const auto first = [&](const Tokens& before) {
    Sampler sampler = require(Sampler::create(model(), options));
    sampler.accept_prompt(before);
    return require(sampler.sample(logits));
  };
  const TokenId best = first({});
  const TokenId second = first({best});
  EXPECT_NE(second, best);
  // Only the last 64 tokens count.
  Tokens old(65, 1);
  old[0] = best;
  EXPECT_EQ(first(old), best);
  old.pop_back();
  EXPECT_EQ(first(old), second);
}

TEST(Sampler, ValuesOutOfRangeAreErrorsThatNameThem) {
  const auto refused = [](const char* name, auto change) {
    SamplerOptions options;
    change(options);
    const Status status = check_sampler_options(options);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
    EXPECT_FALSE(Sampler::create(model(), options).ok()) << name;
  };
  refused("temp", [](auto& o) { o.temperature = -0.1f; });
  refused("temp", [](auto& o) { o.temperature = NAN; });
  refused("top-k", [](auto& o) { o.top_k = -1; });
  refused("top-p", [](auto& o) { o.top_p = 1.1f; });
  refused("min-p", [](auto& o) { o.min_p = -0.1f; });
  refused("typical", [](auto& o) { o.typical_p = INFINITY; });
  refused("top-nsigma", [](auto& o) { o.top_n_sigma = -0.5f; });
  refused("xtc-probability", [](auto& o) { o.xtc_probability = 2; });
  refused("xtc-threshold", [](auto& o) { o.xtc_threshold = -1; });
  refused("repeat-last-n", [](auto& o) { o.repeat_last_n = -1; });
  refused("repeat-last-n", [](auto& o) { o.repeat_last_n = 2'000'000'000; });
  refused("repeat-penalty", [](auto& o) { o.repeat_penalty = 0; });
  refused("frequency-penalty", [](auto& o) { o.frequency_penalty = NAN; });
  refused("presence-penalty", [](auto& o) { o.presence_penalty = 1e9f; });
  refused("dry-multiplier", [](auto& o) { o.dry_multiplier = -1; });
  refused("dry-base", [](auto& o) { o.dry_base = 0.5f; });
  refused("dry-allowed-length", [](auto& o) { o.dry_allowed_length = -1; });
  refused("dry-penalty-last-n", [](auto& o) { o.dry_penalty_last_n = -1; });
  refused("dry-sequence-breaker", [](auto& o) { o.dry_sequence_breakers = {""}; });
  refused("dry-sequence-breaker",
          [](auto& o) { o.dry_sequence_breakers = {std::string(41, 'x')}; });
  refused("dynatemp-range", [](auto& o) { o.dynatemp_range = -1; });
  refused("dynatemp-exp", [](auto& o) { o.dynatemp_exponent = -1; });
  refused("mirostat", [](auto& o) { o.mirostat = 3; });
  refused("mirostat-lr", [](auto& o) { o.mirostat_lr = NAN; });
  refused("mirostat-ent", [](auto& o) { o.mirostat_entropy = -1; });
  refused("adaptive-target", [](auto& o) { o.adaptive_target = -0.5f; });
  refused("adaptive-decay", [](auto& o) { o.adaptive_decay = 1; });
  refused("bias", [](auto& o) { o.logit_bias = {{1, INFINITY}}; });
  refused("bias", [](auto& o) { o.logit_bias = {{1, NAN}}; });
  refused("seed", [](auto& o) { o.seed = 0xFFFFFFFF; });
  refused("twice", [](auto& o) { o.order = {SamplerStep::kTopK, SamplerStep::kTopK}; });
}

TEST(Sampler, NamesOfTheOrder) {
  EXPECT_EQ(
      require(parse_sampler_order("penalties;dry;top-n-sigma;top-k;typ_p;top_p;min_p;xtc;temp")),
      default_sampler_order());
  EXPECT_EQ(require(parse_sampler_order("nucleus;TopK;typ")),
            (std::vector{SamplerStep::kTopP, SamplerStep::kTopK, SamplerStep::kTypical}));
  for (const char* bad : {"", ";", "top_k;", "top_k;bogus", "top_k;top-k", "infill", "k"}) {
    EXPECT_FALSE(parse_sampler_order(bad).ok()) << bad;
  }
  EXPECT_NE(parse_sampler_order("bogus").error().message.find("min_p"), std::string::npos);
}

TEST(Sampler, RefusesTokensThatTheModelDoesNotHave) {
  SamplerOptions options;
  for (const TokenId token : {-1, static_cast<TokenId>(model().info().n_vocab)}) {
    options.logit_bias = {{token, 1}};
    EXPECT_FALSE(Sampler::create(model(), options).ok()) << token;
  }
}

TEST(Sampler, GrammarsThatAreNone) {
  std::string nested = "root ::= ";
  for (int i = 0; i < 100000; ++i) nested += '(';
  for (const std::string& text :
       {std::string("no grammar"), std::string("start ::= \"a\""), std::string("root ::= missing"),
        std::string("root ::= root \"a\""), std::string("root ::= \"a\"{99999}"),
        std::string("root ::= [a"), std::string("root ::= \"a\0b\"", 14), nested,
        std::string(300'000, ' ')}) {
    SamplerOptions options;
    options.grammar = text;
    const auto made = Sampler::create(model(), options);
    ASSERT_FALSE(made.ok()) << text.substr(0, 40);
    EXPECT_NE(made.error().message.find("grammar"), std::string::npos) << made.error().message;
    EXPECT_EQ(made.error().message.find('\n'), std::string::npos) << made.error().message;
  }
  SamplerOptions options;  // parentheses in quotes, classes and comments do not nest
  options.grammar = "root ::= [([] \"" + std::string(300, '(') + "\" # " + std::string(300, '(');
  require(Sampler::create(model(), options));
}

TEST(Sampler, NothingLeftIsAnErrorAndNotAToken) {
  SamplerOptions options;
  options.grammar = "root ::= \"a\"";
  options.ignore_eos = true;
  Sampler sampler = require(Sampler::create(model(), options));
  EXPECT_EQ(model().tokenizer().piece(require(sampler.sample(logits_of(0)))), "a");
  const auto after = sampler.sample(logits_of(1));  // only an end token would be allowed
  ASSERT_FALSE(after.ok());
  EXPECT_NE(after.error().message.find("no token"), std::string::npos);
}

}  // namespace
}  // namespace volvelle::test
