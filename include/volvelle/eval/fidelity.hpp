// How far two ways of running the same tokens are apart: KL divergence, top-1 agreement, logits.
// All sums are in double; the first argument is the reference p of KL(p || q). Cost: one decode
// step per compared position on each side.
#pragma once

#include <span>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/stepper.hpp"

namespace volvelle {

/// Kullback-Leibler divergence KL(p || q) in nats of the softmax distributions of two logit rows,
/// in double precision. The rows must be equally long.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);
/// -log softmax(logits)[token], in double precision.
double negative_log_likelihood(std::span<const float> logits, TokenId token);
/// Index of the first largest logit; -1 for no logits.
std::int64_t argmax(std::span<const float> logits) noexcept;

struct Fidelity {
  std::int64_t n = 0;
  double kl_mean = 0;
  double kl_p99 = 0;
  double kl_max = 0;
  double top1_agreement = 0;
  double logit_delta_max = 0;
  // Of the text's own next tokens, which all compared positions but the last one have.
  std::int64_t n_predicted = 0;
  double reference_nll = 0;    // mean, nats; its exponential is the perplexity
  double candidate_nll = 0;    // mean, nats
  double nll_delta_error = 0;  // standard error of the mean difference, positions paired
};

/// Prefills `tokens` but the last `last` through both, in chunks, then decodes the last ones one by
/// one (teacher forcing) and compares the distributions after each. `reference` is p. Both must be
/// empty.
Result<Fidelity> compare(Stepper& reference, Stepper& candidate, std::span<const TokenId> tokens,
                         std::int64_t last, std::int64_t chunk, const ProgressSink& progress);

}  // namespace volvelle
