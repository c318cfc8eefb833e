// All runs go through the text side by side, chunk by chunk. See perplexity.hpp.
#include "volvelle/eval/perplexity.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/result_macros.hpp"
#include "eval/logit_math.hpp"
#include "eval/progress_meter.hpp"
#include "eval/statistics.hpp"
#include "volvelle/eval/fidelity.hpp"  // argmax

namespace volvelle {
namespace {

Status check_arguments(const ModelInfo& model, std::span<const TokenId> tokens,
                       const PerplexityOptions& options) {
  if (tokens.size() < 2 || options.chunk < 1 || options.specs.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "perplexity: at least 2 tokens, a chunk of 1 token and one memory are needed, "
                 "not " +
                     std::to_string(tokens.size()) + " tokens, a chunk of " +
                     std::to_string(options.chunk) + " and " +
                     std::to_string(options.specs.size()) + " memories"};
  }
  if (std::ssize(tokens) > model.context_length) {
    return Error{ErrorCode::kContextExceeded, "perplexity: " + std::to_string(tokens.size()) +
                                                  " tokens exceed the model's context of " +
                                                  std::to_string(model.context_length)};
  }
  return {};
}

/// One way to run the text, and what was found so far.
class Contender {
 public:
  static Result<std::unique_ptr<Contender>> of_memory(const Model& model, const MemorySpec& spec,
                                                      const PerplexityOptions& options) {
    VOLVELLE_RETURN_IF_ERROR(require_supported(spec));
    if (spec.topk && options.chunk > 1) {
      return Error{ErrorCode::kInvalidArgument,
                   "perplexity: '" + to_string(spec) + "' reads chunks of more than 1 token " +
                       "exactly, so a chunk of " + std::to_string(options.chunk) +
                       " would say nothing about it; use a chunk of 1, or audit"};
    }
    SessionOptions session_options;
    session_options.n_threads = session_options.n_threads_batch = options.n_threads;
    session_options.n_ubatch = options.n_ubatch;
    session_options.deterministic = options.deterministic;
    session_options.cancel = options.cancel;
    VOLVELLE_ASSIGN_OR_RETURN(session_options.kv, kv_types(spec));
    auto contender = std::make_unique<Contender>();
    contender->row.spec = to_string(spec);
    VOLVELLE_ASSIGN_OR_RETURN(contender->session_, Session::create(model, session_options));
    Session& session = *contender->session_;
    contender->row.bytes_per_token = static_cast<std::int64_t>(session.layout().bytes_per_token());
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(spec));
    contender->stepper_ = make_memory_stepper(session, std::move(memory));
    return contender;
  }

  static Result<std::unique_ptr<Contender>> of_engine(const Model& model, bool flash_attention,
                                                      std::int64_t n_ctx,
                                                      const PerplexityOptions& options) {
    EngineStepperOptions engine;
    engine.n_ctx = n_ctx;
    engine.n_threads = engine.n_threads_batch = options.n_threads;
    engine.n_ubatch = options.n_ubatch;
    engine.flash_attention = flash_attention;
    auto contender = std::make_unique<Contender>();
    contender->row.spec = flash_attention ? "llama flash" : "llama no-flash";
    const StoreLayout f16{model.info().layers, ElementType::kF16, ElementType::kF16};
    contender->row.bytes_per_token = static_cast<std::int64_t>(f16.bytes_per_token());
    VOLVELLE_ASSIGN_OR_RETURN(contender->stepper_, make_engine_stepper(model, engine));
    return contender;
  }

  Status step(std::span<const TokenId> chunk) { return stepper_->step(chunk, Logits::kAll); }

  /// Scores `target` with row `i` of the last step, whose position is `position`, and compares the
  /// row with the reference's.
  Status score(std::int64_t i, std::int64_t position, TokenId target, const Contender& reference) {
    const std::span<const float> q = stepper_->logits(i);
    const double q_lse = log_sum_exp(q);
    if (!std::isfinite(q_lse)) {
      return Error{ErrorCode::kNumeric, "perplexity: the logits of '" + row.spec +
                                            "' at position " + std::to_string(position) +
                                            " are not finite"};
    }
    row.nll.push_back(q_lse - q[static_cast<std::size_t>(target)]);
    const std::span<const float> p = reference.stepper_->logits(i);
    const double p_lse = &reference == this ? q_lse : log_sum_exp(p);
    kl_.push_back(kl_from_log_sums(p, p_lse, q, q_lse));
    agreed_ += argmax(p) == argmax(q) ? 1 : 0;
    return {};
  }

  PerplexityRow finish(const Contender& reference) {
    const SampleMean nll = sample_mean(row.nll);
    std::vector<double> delta(row.nll.size());
    for (std::size_t t = 0; t < delta.size(); ++t) delta[t] = row.nll[t] - reference.row.nll[t];
    const SampleMean difference = sample_mean(delta);
    row.n_targets = std::ssize(row.nll);
    row.nll_mean = nll.mean;
    row.perplexity = std::exp(nll.mean);
    row.perplexity_error = row.perplexity * nll.error;  // d exp(x) = exp(x) dx
    row.nll_delta_mean = difference.mean;
    row.nll_delta_error = difference.error;
    row.kl_mean = sample_mean(kl_).mean;
    row.kl_p99 = quantile(kl_, 0.99);
    row.kl_max = quantile(kl_, 1.0);
    row.top1_agreement = static_cast<double>(agreed_) / static_cast<double>(kl_.size());
    return row;
  }

  PerplexityRow row;

 private:
  std::optional<Session> session_;
  std::unique_ptr<Stepper> stepper_;
  std::vector<double> kl_;
  std::int64_t agreed_ = 0;
};

using Contenders = std::vector<std::unique_ptr<Contender>>;

Result<Contenders> make_contenders(const Model& model, std::int64_t n_tokens,
                                   const PerplexityOptions& options) {
  Contenders contenders;
  for (const MemorySpec& spec : options.specs) {
    VOLVELLE_ASSIGN_OR_RETURN(auto contender, Contender::of_memory(model, spec, options));
    contenders.push_back(std::move(contender));
  }
  if (!options.against_engine) return contenders;
  for (const bool flash_attention : {true, false}) {
    VOLVELLE_ASSIGN_OR_RETURN(auto contender,
                              Contender::of_engine(model, flash_attention, n_tokens, options));
    contenders.push_back(std::move(contender));
  }
  return contenders;
}

}  // namespace

Result<std::vector<PerplexityRow>> run_perplexity(const Model& model,
                                                  std::span<const TokenId> tokens,
                                                  const PerplexityOptions& options,
                                                  const ProgressSink& progress) {
  VOLVELLE_RETURN_IF_ERROR(check_arguments(model.info(), tokens, options));
  const std::int64_t n_tokens = std::ssize(tokens);
  VOLVELLE_ASSIGN_OR_RETURN(const Contenders contenders, make_contenders(model, n_tokens, options));
  ProgressMeter meter(progress, "perplexity", "tokens", n_tokens * std::ssize(contenders));
  for (std::int64_t begin = 0; begin < n_tokens; begin += options.chunk) {
    const std::int64_t n = std::min(options.chunk, n_tokens - begin);
    const auto chunk = tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
    for (const auto& contender : contenders) {
      if (options.cancel.cancelled())
        return Error{ErrorCode::kCancelled, "perplexity: interrupted"};
      VOLVELLE_RETURN_IF_ERROR(contender->step(chunk));
      for (std::int64_t i = 0; i < n && begin + i + 1 < n_tokens; ++i) {
        const TokenId target = tokens[static_cast<std::size_t>(begin + i + 1)];
        VOLVELLE_RETURN_IF_ERROR(contender->score(i, begin + i, target, *contenders.front()));
      }
      meter.add(n);
    }
  }
  std::vector<PerplexityRow> rows;
  for (const auto& contender : contenders) rows.push_back(contender->finish(*contenders.front()));
  return rows;
}

}  // namespace volvelle
