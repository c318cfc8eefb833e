// The engine's sampler chain. With a temperature above 0 it is exactly that of llama.cpp's own
// programs; greedy, only what can change the best token is in it, because truncation never drops
// that one. A grammar is asked about the chosen token first, and only if it refuses that one about
// all of them (again as llama.cpp does, so draws agree). Cost: O(n_vocab) per token.
#include "volvelle/runtime/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <vector>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "runtime/engine.hpp"
#include "runtime/grammar.hpp"
#include "runtime/model_impl.hpp"

namespace volvelle {
namespace {

bool uses_penalties(const SamplerOptions& o) {
  return o.repeat_last_n > 0 &&
         (o.repeat_penalty != 1 || o.frequency_penalty != 0 || o.presence_penalty != 0);
}
bool uses_dry(const SamplerOptions& o) { return o.dry_multiplier != 0 && o.dry_penalty_last_n > 0; }

/// Whether a step can change which token is the best one; typical and xtc depend on what the other
/// steps leave over.
bool matters_when_greedy(SamplerStep step, const SamplerOptions& o) {
  if (step == SamplerStep::kTemperature || step == SamplerStep::kAdaptiveP) return false;
  if (o.typical_p < 1 || o.xtc_probability > 0) return true;
  return (step == SamplerStep::kPenalties && uses_penalties(o)) ||
         (step == SamplerStep::kDry && uses_dry(o));
}

llama_sampler* make_dry(const llama_vocab* vocab, const SamplerOptions& o) {
  std::vector<const char*> breakers;
  for (const std::string& breaker : o.dry_sequence_breakers) breakers.push_back(breaker.c_str());
  return llama_sampler_init_dry(vocab, o.dry_multiplier, o.dry_base, o.dry_allowed_length,
                                o.dry_penalty_last_n, breakers.data(), breakers.size());
}

llama_sampler* make_step(SamplerStep step, const llama_vocab* vocab, const SamplerOptions& o) {
  switch (step) {
    case SamplerStep::kPenalties:
      return llama_sampler_init_penalties(llama_vocab_n_tokens(vocab), o.repeat_last_n,
                                          o.repeat_penalty, o.frequency_penalty,
                                          o.presence_penalty);
    case SamplerStep::kDry:
      return make_dry(vocab, o);
    case SamplerStep::kTopNSigma:
      return llama_sampler_init_top_n_sigma(o.top_n_sigma);
    case SamplerStep::kTopK:
      return llama_sampler_init_top_k(o.top_k);
    case SamplerStep::kTypical:
      return llama_sampler_init_typical(o.typical_p, 0);
    case SamplerStep::kTopP:
      return llama_sampler_init_top_p(o.top_p, 0);
    case SamplerStep::kMinP:
      return llama_sampler_init_min_p(o.min_p, 0);
    case SamplerStep::kXtc:
      return llama_sampler_init_xtc(o.xtc_probability, o.xtc_threshold, 0, o.seed);
    case SamplerStep::kTemperature:
      return llama_sampler_init_temp_ext(o.temperature, o.dynatemp_range, o.dynatemp_exponent);
    case SamplerStep::kAdaptiveP:
      break;  // it draws, so it stands at the end whatever its place in the list
  }
  return nullptr;
}

/// What the user, --ignore-eos and the model itself want to be more or less likely.
Result<std::vector<llama_logit_bias>> make_biases(const llama_vocab* vocab,
                                                  const SamplerOptions& options) {
  const std::int32_t n_vocab = llama_vocab_n_tokens(vocab);
  std::vector<llama_logit_bias> biases;
  for (const LogitBias& bias : options.logit_bias) {
    if (bias.token < 0 || bias.token >= n_vocab) {
      return Error{ErrorCode::kInvalidArgument,
                   "sampler: token " + std::to_string(bias.token) +
                       " of a logit bias is not in the vocabulary of " + std::to_string(n_vocab) +
                       " tokens"};
    }
    biases.push_back({bias.token, bias.bias});
  }
  for (std::int32_t i = 0; options.ignore_eos && i < n_vocab; ++i) {
    if (llama_vocab_is_eog(vocab, i)) biases.push_back({i, -INFINITY});
  }
  std::int32_t n_suppressed = 0;
  const llama_token* const suppressed = llama_vocab_get_suppress_tokens(vocab, &n_suppressed);
  for (std::int32_t i = 0; i < n_suppressed; ++i) biases.push_back({suppressed[i], -INFINITY});
  return biases;
}

void add_steps(llama_sampler* chain, const llama_vocab* vocab, const SamplerOptions& o) {
  const auto add = [chain](llama_sampler* step) { llama_sampler_chain_add(chain, step); };
  const bool greedy = is_greedy(o);
  if (o.mirostat != 0) {
    if (greedy) return add(llama_sampler_init_greedy());
    add(llama_sampler_init_temp(o.temperature));
    constexpr std::int32_t kEstimatedFrom = 100;  // tokens, as in the paper and in llama.cpp
    add(o.mirostat == 1
            ? llama_sampler_init_mirostat(llama_vocab_n_tokens(vocab), o.seed, o.mirostat_entropy,
                                          o.mirostat_lr, kEstimatedFrom)
            : llama_sampler_init_mirostat_v2(o.seed, o.mirostat_entropy, o.mirostat_lr));
    return;
  }
  bool adaptive = false;
  for (const SamplerStep step : o.order) {
    adaptive = adaptive || step == SamplerStep::kAdaptiveP;
    if (step == SamplerStep::kAdaptiveP || (greedy && !matters_when_greedy(step, o))) continue;
    add(make_step(step, vocab, o));
  }
  if (greedy) return add(llama_sampler_init_greedy());
  add(adaptive ? llama_sampler_init_adaptive_p(o.adaptive_target, o.adaptive_decay, o.seed)
               : llama_sampler_init_dist(o.seed));
}

}  // namespace

struct Sampler::Impl {
  engine::SamplerPtr chain;
  engine::SamplerPtr grammar;
  std::size_t n_remembered = 0;  // tokens before the answer that any step looks at
  std::vector<llama_token_data> candidates;

  void assign(std::span<const float> logits) {
    candidates.resize(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
      candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
  }
  /// The chosen candidate, or nothing if none is allowed.
  const llama_token_data* choose(bool grammar_first) {
    llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
    if (grammar_first) llama_sampler_apply(grammar.get(), &array);
    llama_sampler_apply(chain.get(), &array);
    if (array.selected < 0 || array.selected >= static_cast<std::int64_t>(array.size))
      return nullptr;
    const llama_token_data* const chosen = &array.data[array.selected];
    return std::isfinite(chosen->logit) ? chosen : nullptr;
  }
  bool grammar_allows(llama_token token) {
    llama_token_data one{token, 1.0f, 0.0f};
    llama_token_data_array array{&one, 1, -1, false};
    llama_sampler_apply(grammar.get(), &array);
    return std::isfinite(one.logit);
  }
};

Sampler::Sampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

Result<Sampler> Sampler::create(const Model& model, const SamplerOptions& options) {
  VOLVELLE_RETURN_IF_ERROR(check_sampler_options(options));
  const llama_vocab* const vocab = llama_model_get_vocab(model.impl().engine_model.get());
  VOLVELLE_ASSIGN_OR_RETURN(const auto biases, make_biases(vocab, options));
  auto impl = std::make_unique<Impl>();
  if (!options.grammar.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(impl->grammar, make_grammar(vocab, options.grammar));
  }
  impl->chain.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  if (!biases.empty()) {
    llama_sampler_chain_add(
        impl->chain.get(),
        llama_sampler_init_logit_bias(llama_vocab_n_tokens(vocab),
                                      static_cast<std::int32_t>(biases.size()), biases.data()));
  }
  add_steps(impl->chain.get(), vocab, options);
  if (uses_penalties(options)) impl->n_remembered = static_cast<std::size_t>(options.repeat_last_n);
  if (uses_dry(options)) {
    impl->n_remembered =
        std::max(impl->n_remembered, static_cast<std::size_t>(options.dry_penalty_last_n));
  }
  return Sampler(std::move(impl));
}

void Sampler::accept_prompt(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens.last(std::min(tokens.size(), impl_->n_remembered)))
    llama_sampler_accept(impl_->chain.get(), token);
}

Result<TokenId> Sampler::sample(std::span<const float> logits) {
  impl_->assign(logits);
  const llama_token_data* chosen = impl_->choose(false);
  if (impl_->grammar && (chosen == nullptr || !impl_->grammar_allows(chosen->id))) {
    impl_->assign(logits);
    chosen = impl_->choose(true);
  }
  if (chosen == nullptr) {
    return Error{
        ErrorCode::kInvalidArgument,
        "sampler: the grammar and the biases leave no token to choose; loosen one of them"};
  }
  const llama_token token = chosen->id;
  try {
    if (impl_->grammar) llama_sampler_accept(impl_->grammar.get(), token);
  } catch (const std::exception& error) {
    return Error{ErrorCode::kEngine, std::string("sampler: the grammar refused token ") +
                                         std::to_string(token) + ": " + error.what()};
  }
  llama_sampler_accept(impl_->chain.get(), token);
  return token;
}

}  // namespace volvelle
