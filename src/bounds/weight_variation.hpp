// From bounds of logits to bounds of attention weights and outputs. eps_j bounds how much logit j
// may change; p' are the weights of the read as it was done. (RoAM, section on certificates.)
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace volvelle {

/// TV <= tanh(eps / 2) if every logit changes by at most eps; attained by two weights.
double uniform_variation(double eps);
/// TV <= ((e^(2 eps) - 1) / (2 eps)) sum_j p'_j eps_j, eps the largest.
double weighted_variation(std::span<const double> weights, std::span<const double> eps);
/// Logits beyond `small` have weight `heavy` together in p' and change by at most `large`.
double two_level_variation(double small, double heavy, double large);
/// The share that left-out rows would have had: n of them with logits at most `largest`, the
/// others' weights adding up to e^kept_log_sum. The variation of leaving them out is exactly that
/// share.
double evicted_share(std::int64_t n, double largest, double kept_log_sum);
/// |o - o'| <= 2 TV radius + sum_j p'_j |dv_j|; radius: of a ball that holds all values.
double output_change(double variation, double radius, double value_term);

}  // namespace volvelle
