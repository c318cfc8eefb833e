// Drift of the fold against one full pass (KV-Fold, section 4.1), chunk by chunk.
//
//   drift(d) = mean NLL_fold - mean NLL_full,   advantage(d) = mean NLL_isolated - mean NLL_fold
//   over the targets of chunk d
//
// FULL is plain llama.cpp with one cache for the whole text, FOLD our memory, ISOLATED the chunk
// alone. By construction the fold computes the same function as the full pass, so drift must be
// rounding; one that does not shrink with precision is a bug. All three runs go through the text
// side by side, so only one chunk's logits and rows are held at a time. A target is scored with the
// row before it: a chunk's first target by the chunk before, and T - 1 targets in all. Cost: three
// times the chunk's prefill (one of them without context).
#include "volvelle/eval/drift.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "base/result_macros.hpp"
#include "eval/kv_comparison.hpp"
#include "eval/logit_math.hpp"
#include "eval/progress_meter.hpp"
#include "volvelle/eval/fidelity.hpp"  // argmax

namespace volvelle {
namespace {

Status check_arguments(const ModelInfo& model, std::span<const TokenId> tokens,
                       std::int64_t chunk) {
  const auto n_tokens = static_cast<std::int64_t>(tokens.size());
  if (chunk < 2 || n_tokens < 2 || n_tokens % chunk == 1) {
    return Error{ErrorCode::kInvalidArgument,
                 "drift: every chunk must have at least 2 tokens, the last one too, not " +
                     std::to_string(n_tokens) + " tokens in chunks of " + std::to_string(chunk)};
  }
  if (n_tokens > model.context_length) {
    return Error{ErrorCode::kContextExceeded, "drift: " + std::to_string(n_tokens) +
                                                  " tokens exceed the model's context of " +
                                                  std::to_string(model.context_length)};
  }
  for (const TokenId token : tokens) {
    if (token >= 0 && token < model.n_vocab) continue;
    return Error{ErrorCode::kInvalidArgument, "drift: token " + std::to_string(token) +
                                                  " is outside the vocabulary of " +
                                                  std::to_string(model.n_vocab)};
  }
  return {};
}

Error not_finite(const char* run, std::int64_t position) {
  return Error{ErrorCode::kNumeric, std::string("drift: the logits of the ") + run +
                                        " run at position " + std::to_string(position) +
                                        " are not finite"};
}

MemorySpec full_spec(const KvTypes& kv) {
  MemorySpec spec = MemorySpec::full_memory();
  spec.kv = KvTerm{std::string(to_string(kv.k)), std::string(to_string(kv.v))};
  return spec;
}

/// Mean of nll[begin, end).
double mean(const std::vector<double>& nll, std::int64_t begin, std::int64_t end) {
  double sum = 0;
  for (std::int64_t p = begin; p < end; ++p) sum += nll[static_cast<std::size_t>(p)];
  return sum / static_cast<double>(end - begin);
}

/// The three runs of one text.
class DriftRun {
 public:
  static Result<std::unique_ptr<DriftRun>> create(const Model& model,
                                                  std::span<const TokenId> tokens,
                                                  const DriftOptions& options);
  Result<DriftRow> next_chunk();
  std::int64_t position() const noexcept { return begin_; }
  bool done() const noexcept { return begin_ == n_tokens(); }

 private:
  DriftRun(const Model& model, std::span<const TokenId> tokens, const DriftOptions& options)
      : tokens_(tokens),
        chunk_(options.chunk),
        spec_(full_spec(options.kv)),
        rows_(model.info().layers, options.chunk),
        nll_full_(tokens.size()),
        nll_fold_(tokens.size()) {}
  std::int64_t n_tokens() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  TokenId token(std::int64_t p) const noexcept { return tokens_[static_cast<std::size_t>(p)]; }
  Status step_both(std::span<const TokenId> part, DriftRow& row);
  Status score_logits(std::int64_t n, DriftRow& row);
  void score_targets(std::int64_t n, DriftRow& row) const;
  Status score_isolated(std::span<const TokenId> part, DriftRow& row);

  std::span<const TokenId> tokens_;
  std::int64_t chunk_ = 0;
  MemorySpec spec_;
  KvComparison rows_;  // before the runs, whose sinks point into it
  std::unique_ptr<Stepper> full_;
  std::optional<Session> session_;
  std::optional<ContextMemory> fold_;
  std::vector<double> nll_full_;  // [T], of the token at each position; [0] is not scored
  std::vector<double> nll_fold_;
  std::int64_t begin_ = 0;  // first position of the next chunk
};

Result<std::unique_ptr<DriftRun>> DriftRun::create(const Model& model,
                                                   std::span<const TokenId> tokens,
                                                   const DriftOptions& options) {
  std::unique_ptr<DriftRun> run(new DriftRun(model, tokens, options));
  const bool f16 = options.kv.k == ElementType::kF16 && options.kv.v == ElementType::kF16;
  EngineStepperOptions engine;
  engine.n_ctx = run->n_tokens();
  engine.n_threads = engine.n_threads_batch = options.n_threads;
  engine.n_ubatch = options.n_ubatch;
  engine.kv_type = f16 ? ElementType::kF16 : ElementType::kF32;
  engine.capture = run->rows_.reference_sink();
  VOLVELLE_ASSIGN_OR_RETURN(run->full_, make_engine_stepper(model, engine));

  SessionOptions ours;
  ours.n_threads = ours.n_threads_batch = options.n_threads;
  ours.n_ubatch = options.n_ubatch;
  ours.kv = options.kv;
  ours.cancel = options.cancel;
  ours.capture = run->rows_.candidate_sink();
  VOLVELLE_ASSIGN_OR_RETURN(run->session_, Session::create(model, ours));
  VOLVELLE_ASSIGN_OR_RETURN(run->fold_, run->session_->begin(run->spec_));
  return run;
}

Status DriftRun::step_both(std::span<const TokenId> part, DriftRow& row) {
  rows_.begin(Position(begin_), static_cast<std::int64_t>(part.size()));
  VOLVELLE_RETURN_IF_ERROR(full_->step(part, Logits::kAll));
  const auto start = std::chrono::steady_clock::now();
  VOLVELLE_RETURN_IF_ERROR(session_->step(*fold_, part, Logits::kAll));
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  rows_.pause();
  VOLVELLE_ASSIGN_OR_RETURN(row.kv_rel_l2, rows_.worst_relative_l2());
  return {};
}

/// Compares the chunk's rows of logits and keeps the NLL of the token that each one predicts, the
/// next chunk's first included.
Status DriftRun::score_logits(std::int64_t n, DriftRow& row) {
  std::int64_t agreed = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::span<const float> full = full_->logits(i);
    const std::span<const float> fold = session_->logits(i);
    const double full_lse = log_sum_exp(full);
    const double fold_lse = log_sum_exp(fold);
    if (!std::isfinite(full_lse)) return not_finite("full", begin_ + i);
    if (!std::isfinite(fold_lse)) return not_finite("folded", begin_ + i);
    row.kl_mean += kl_from_log_sums(full, full_lse, fold, fold_lse) / static_cast<double>(n);
    row.logit_delta_max = std::max(row.logit_delta_max, max_abs_difference(full, fold));
    agreed += argmax(full) == argmax(fold) ? 1 : 0;
    const std::int64_t target = begin_ + i + 1;
    if (target == n_tokens()) break;
    const auto at = static_cast<std::size_t>(token(target));
    nll_full_[static_cast<std::size_t>(target)] = full_lse - full[at];
    nll_fold_[static_cast<std::size_t>(target)] = fold_lse - fold[at];
  }
  row.argmax_agreement = static_cast<double>(agreed) / static_cast<double>(n);
  return {};
}

void DriftRun::score_targets(std::int64_t n, DriftRow& row) const {
  const std::int64_t first = std::max<std::int64_t>(begin_, 1);
  row.n_targets = begin_ + n - first;
  for (std::int64_t p = first; p < begin_ + n; ++p) {
    const auto at = static_cast<std::size_t>(p);
    const double delta = nll_fold_[at] - nll_full_[at];
    row.nll_delta_mean += delta / static_cast<double>(row.n_targets);
    row.nll_delta_abs += std::abs(delta) / static_cast<double>(row.n_targets);
  }
}

/// Runs the chunk from an empty memory. Overwrites the session's logits, so it comes last.
Status DriftRun::score_isolated(std::span<const TokenId> part, DriftRow& row) {
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory alone, session_->begin(spec_));
  VOLVELLE_RETURN_IF_ERROR(session_->step(alone, part, Logits::kAll));
  const auto n = static_cast<std::int64_t>(part.size());
  double sum = 0;
  for (std::int64_t i = 0; i + 1 < n; ++i) {
    const std::span<const float> logits = session_->logits(i);
    const double lse = log_sum_exp(logits);
    if (!std::isfinite(lse)) return not_finite("isolated", i);
    sum += lse - logits[static_cast<std::size_t>(part[static_cast<std::size_t>(i + 1)])];
  }
  row.nll_isolated = sum / static_cast<double>(n - 1);
  row.advantage = row.nll_isolated - mean(nll_fold_, begin_ + 1, begin_ + n);
  return {};
}

Result<DriftRow> DriftRun::next_chunk() {
  const std::int64_t n = std::min(chunk_, n_tokens() - begin_);
  const auto part = tokens_.subspan(static_cast<std::size_t>(begin_), static_cast<std::size_t>(n));
  DriftRow row;
  row.depth = begin_ / chunk_;
  VOLVELLE_RETURN_IF_ERROR(step_both(part, row));
  VOLVELLE_RETURN_IF_ERROR(score_logits(n, row));
  score_targets(n, row);
  VOLVELLE_RETURN_IF_ERROR(score_isolated(part, row));
  begin_ += n;
  return row;
}

}  // namespace

Result<std::vector<DriftRow>> run_drift(const Model& model, std::span<const TokenId> tokens,
                                        const DriftOptions& options, const ProgressSink& progress) {
  const auto n_tokens = static_cast<std::int64_t>(tokens.size());
  VOLVELLE_RETURN_IF_ERROR(check_arguments(model.info(), tokens, options.chunk));
  VOLVELLE_ASSIGN_OR_RETURN(const auto run, DriftRun::create(model, tokens, options));
  ProgressMeter meter(progress, "drift", "tokens", n_tokens);
  std::vector<DriftRow> rows;
  while (!run->done()) {
    if (options.cancel.cancelled()) {
      return Error{ErrorCode::kCancelled, "drift: cancelled at token " +
                                              std::to_string(run->position()) + " of " +
                                              std::to_string(n_tokens)};
    }
    const std::int64_t before = run->position();
    VOLVELLE_ASSIGN_OR_RETURN(const DriftRow row, run->next_chunk());
    rows.push_back(row);
    meter.add(run->position() - before);
  }
  return rows;
}

}  // namespace volvelle
