// Fidelity: how far two ways of running the same tokens are apart.
//
// Both runs are fed the same text (teacher forcing), so one different token can not send them
// apart, and the last positions are decoded one by one, because decoding is what a memory is for
// and takes other kernels than prefill. After each such token the two next-token distributions are
// compared: KL(reference || candidate), most likely token, largest logit difference. Cost: beyond
// running the tokens, three exp per vocabulary entry and compared position.
#include "volvelle/eval/fidelity.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/result_macros.hpp"
#include "eval/logit_math.hpp"
#include "eval/progress_meter.hpp"
#include "eval/statistics.hpp"

namespace volvelle {
namespace {

Status check_arguments(const Stepper& reference, const Stepper& candidate, std::int64_t n_tokens,
                       std::int64_t last, std::int64_t chunk) {
  if (last < 1 || last > n_tokens) {
    return Error{ErrorCode::kInvalidArgument,
                 "fidelity: the number of compared positions must be 1 to " +
                     std::to_string(n_tokens) + " (the number of tokens), not " +
                     std::to_string(last)};
  }
  if (chunk < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 "fidelity: the chunk must have at least 1 token, not " + std::to_string(chunk)};
  }
  if (reference.length() != 0 || candidate.length() != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "fidelity: both runs must start empty, but they hold " +
                     std::to_string(reference.length()) + " and " +
                     std::to_string(candidate.length()) + " tokens"};
  }
  return {};
}

/// Per-position differences, turned into means and quantiles at the end.
class Accumulator {
 public:
  /// `next`: the token that the text goes on with, if it is known.
  Status add(std::span<const float> p, std::span<const float> q, std::int64_t position,
             std::optional<TokenId> next) {
    if (p.size() != q.size()) {
      return Error{ErrorCode::kMismatch, "fidelity: the reference has " + std::to_string(p.size()) +
                                             " logits and the candidate " +
                                             std::to_string(q.size()) +
                                             "; both must run the same model"};
    }
    const double p_lse = log_sum_exp(p);
    const double q_lse = log_sum_exp(q);
    if (!std::isfinite(p_lse) || !std::isfinite(q_lse)) {
      return Error{ErrorCode::kNumeric,
                   "fidelity: the " +
                       std::string(std::isfinite(p_lse) ? "candidate" : "reference") +
                       "'s logits at position " + std::to_string(position) + " are not finite"};
    }
    kl_.push_back(kl_from_log_sums(p, p_lse, q, q_lse));
    agreed_ += argmax(p) == argmax(q) ? 1 : 0;
    logit_delta_max_ = std::max(logit_delta_max_, max_abs_difference(p, q));
    if (!next) return {};
    const auto at = static_cast<std::size_t>(*next);
    if (*next < 0 || at >= p.size())
      return Error{ErrorCode::kMismatch,
                   "fidelity: token " + std::to_string(*next) + " behind position " +
                       std::to_string(position) + " is not in the vocabulary of " +
                       std::to_string(p.size())};
    reference_nll_.push_back(p_lse - static_cast<double>(p[at]));
    delta_.push_back(q_lse - static_cast<double>(q[at]) - reference_nll_.back());
    return {};
  }

  Fidelity finish() const {
    Fidelity result;
    result.n = static_cast<std::int64_t>(kl_.size());
    for (const double kl : kl_) result.kl_mean += kl / static_cast<double>(kl_.size());
    result.kl_p99 = quantile(kl_, 0.99);
    result.kl_max = quantile(kl_, 1.0);
    result.top1_agreement = static_cast<double>(agreed_) / static_cast<double>(kl_.size());
    result.logit_delta_max = logit_delta_max_;
    const SampleMean delta = sample_mean(delta_);
    result.n_predicted = static_cast<std::int64_t>(delta_.size());
    result.reference_nll = sample_mean(reference_nll_).mean;
    result.candidate_nll = result.reference_nll + delta.mean;
    result.nll_delta_error = delta.error;
    return result;
  }

 private:
  std::vector<double> kl_;
  std::vector<double> reference_nll_, delta_;
  std::int64_t agreed_ = 0;
  double logit_delta_max_ = 0;
};

}  // namespace

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  if (p_logits.size() != q_logits.size()) {
    throw std::invalid_argument("kl_divergence: rows of different length");
  }
  return kl_from_log_sums(p_logits, log_sum_exp(p_logits), q_logits, log_sum_exp(q_logits));
}

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) {
    throw std::out_of_range("negative_log_likelihood: token outside the vocabulary");
  }
  return log_sum_exp(logits) - logits[static_cast<std::size_t>(token)];
}

std::int64_t argmax(std::span<const float> logits) noexcept {
  if (logits.empty()) return -1;
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

Result<Fidelity> compare(Stepper& reference, Stepper& candidate, std::span<const TokenId> tokens,
                         std::int64_t last, std::int64_t chunk, const ProgressSink& progress) {
  const auto n_tokens = static_cast<std::int64_t>(tokens.size());
  VOLVELLE_RETURN_IF_ERROR(check_arguments(reference, candidate, n_tokens, last, chunk));
  ProgressMeter meter(progress, "compare", "tokens", n_tokens);

  const std::int64_t n_prefill = n_tokens - last;
  for (std::int64_t begin = 0; begin < n_prefill; begin += chunk) {
    const std::int64_t n = std::min(chunk, n_prefill - begin);
    const auto part = tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
    VOLVELLE_RETURN_IF_ERROR(reference.step(part, Logits::kNone));
    VOLVELLE_RETURN_IF_ERROR(candidate.step(part, Logits::kNone));
    meter.add(n);
  }

  Accumulator differences;
  for (std::int64_t t = n_prefill; t < n_tokens; ++t) {
    const auto token = tokens.subspan(static_cast<std::size_t>(t), 1);
    VOLVELLE_RETURN_IF_ERROR(reference.step(token, Logits::kLast));
    VOLVELLE_RETURN_IF_ERROR(candidate.step(token, Logits::kLast));
    const auto next = static_cast<std::size_t>(t) + 1;
    VOLVELLE_RETURN_IF_ERROR(
        differences.add(reference.logits(0), candidate.logits(0), t,
                        next < tokens.size() ? std::optional(tokens[next]) : std::nullopt));
    meter.add(1);
  }
  return differences.finish();
}

}  // namespace volvelle
