// At which distance a head can still find a key, and how many others it can tell it from. From
// amplitudes A_b and phases phi_b of the bands' mean products of queries and keys:
//
//   mu(D) = sum_b A_b cos(theta_b D + phi_b)      the logit at distance D
//
// (RoAM, sections on range and capacity.) Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "rope/frequencies.hpp"

namespace volvelle {

/// [n_bands] each; no phases: all 0.
struct LogitBands {
  std::span<const double> amplitude;
  std::span<const double> phase{};
};

double logit_at(const BandFrequencies& bands, const LogitBands& logits, double distance);

struct RetrievalRange {
  double law = 0.0;       // closed form; within 12 % of `smoothed` for flat heads
  double smoothed = 0.0;  // where the average over [D / 1.6, 1.6 D] first falls below
  std::int64_t hard = 0;  // the last integer up to which mu never falls below, searched to `limit`
  double guaranteed = 0.0;  // proved: mu(D) is at least the threshold for every D up to it
};
/// Distances up to which mu stays at or above `threshold`; searches up to `limit`.
RetrievalRange retrieval_range(const BandFrequencies& bands, const LogitBands& logits,
                               double threshold, std::int64_t limit);

/// Others that a target with mean z standard deviations above them is still the largest of, with
/// probability 1 - delta: ln(1 - delta) / ln Phi(z).
double argmax_capacity(double z, double delta);
/// The z at which that is n.
double capacity_quantile(double n, double delta);
/// ln of the others among which a target keeps half of the softmax: target `advantage` nats above
/// their mean, their standard deviation `sigma`. Asymptotic; low by up to a nat for few.
double ln_softmax_capacity(double advantage, double sigma);
/// Capacity by the configuration alone: query = stored key, random phases of the others.
double address_capacity(double kernel, int n_bands, double delta);

}  // namespace volvelle
