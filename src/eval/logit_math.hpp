// Double precision arithmetic on logit rows, shared by everything in eval/.
//
//   lse(x) = m + log sum_i exp(x_i - m),  m = max_i x_i      -log softmax(x)[t] = lse(x) - x_t
//   KL(p || q) = sum_i softmax(p)_i ((p_i - lse(p)) - (q_i - lse(q)))
//
// lse is not finite exactly if the row holds a NaN, +infinity or nothing else than -infinity, so it
// is also the check of a row. Cost: one exp per entry for lse, one more for KL.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace volvelle {

inline double log_sum_exp(std::span<const float> logits) noexcept {
  double max = -std::numeric_limits<double>::infinity();
  for (const float x : logits) max = x > max ? x : max;
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
}

/// KL(p || q) where the log-sum-exp of both rows is known already. Entries of probability zero in p
/// add nothing.
inline double kl_from_log_sums(std::span<const float> p, double p_lse, std::span<const float> q,
                               double q_lse) noexcept {
  double kl = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_lse;
    const double probability = std::exp(log_p);
    if (probability != 0) kl += probability * (log_p - (q[i] - q_lse));
  }
  // KL is never negative; its rounding may be. (Written so that a NaN stays one.)
  return kl < 0 ? 0 : kl;
}

/// max_i |p_i - q_i|
inline double max_abs_difference(std::span<const float> p, std::span<const float> q) noexcept {
  double max = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double d = std::abs(static_cast<double>(p[i]) - q[i]);
    max = d > max ? d : max;
  }
  return max;
}

}  // namespace volvelle
