// Differences of two runs, position by position, and what they come to. Private to eval.
//
//   KL(reference || candidate) in nats, most likely token, largest difference of two logits
//
// A row of logits that is not finite is an error: no mean must hide it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "eval/logit_math.hpp"
#include "eval/statistics.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle {

/// Per-position differences, turned into means and quantiles at the end.
class DifferenceSums {
 public:
  Status add(std::span<const float> p, std::span<const float> q, std::int64_t position) {
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
    return result;
  }

 private:
  std::vector<double> kl_;
  std::int64_t agreed_ = 0;
  double logit_delta_max_ = 0;
};

}  // namespace volvelle
