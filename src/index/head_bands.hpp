// What one head's queries and keys are before rotation, and how well that lets a query find a key
// at any distance: pairs of a query and the key it should find are turned to the distance in
// question, so the distance at which they really stood does not matter (RoAM, sections on logit
// curves and on capacity). Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bounds/edit_bound.hpp"
#include "rope/frequencies.hpp"
#include "rope/retrieval_range.hpp"

namespace volvelle {

/// Keys at the first positions draw attention whatever they hold, and are no part of a curve.
inline constexpr std::int64_t kSinkTokens = 4;

/// Cosines and sines of every band at every position, [n, n_bands] each.
struct BandTurns {
  std::int64_t n = 0;
  std::vector<double> cosine, sine;
};
BandTurns band_turns(const BandFrequencies& bands, std::int64_t n);

/// Rows turned back by their own positions: [n, head_dim], first the real parts of all bands, then
/// their imaginary parts, then the dimensions that do not turn.
struct UnturnedRows {
  std::int64_t n = 0;
  int dim = 0;
  int n_bands = 0;
  std::vector<double> rows;
  std::vector<double> mean;  // [head_dim], behind the sinks
  const double* row(std::int64_t t) const noexcept { return rows.data() + t * dim; }
};
/// rows: [turns.n, layout.head_dim] as attention sees them.
UnturnedRows unturned_rows(const float* rows, const BandLayout& layout, const BandTurns& turns);

/// Mean products c_b = E[q_b conj(k_b)] times the scale of logits, as amplitudes and phases.
struct MeanBands {
  std::vector<double> amplitude, phase;  // [n_bands]
  double constant = 0.0;                 // of the dimensions that do not turn
  LogitBands logits() const noexcept { return {amplitude, phase}; }
  double logit(const BandFrequencies& bands, double distance) const {
    return logit_at(bands, logits(), distance) + constant;
  }
};
/// Of the means of queries and keys: the logits of a query and a key that have nothing to do with
/// each other.
MeanBands background_bands(const UnturnedRows& queries, const UnturnedRows& keys, double scale);

/// How far keys that should be found stand out at one distance. Logits.
struct TargetLogits {
  std::int64_t distance = 0;
  double matched = 0.0;       // mean of the targets
  double background = 0.0;    // mean of other keys for the same queries
  double sigma = 0.0;         // deviation of other keys around the mean of their query, measured
  double target_sigma = 0.0;  // deviation of the targets around the same mean
  /// Deviations of a difference of the two by which the targets' mean is above the others'.
  double z() const noexcept;
};

struct MatchedStudy {
  std::int64_t n_pairs = 0;      // 0: nothing else is set
  MeanBands matched;             // mean products of the pairs
  MeanBands excess;              // less those of the same queries with the mean key: the curve
                                 // matched(D) - background(D)
  std::vector<TargetLogits> at;  // [distances]
};
/// targets: for each position the one of the key that its query should find, or one before
/// kSinkTokens. Distances are shorter than the text. Cost: a few passes over the rows for each.
MatchedStudy matched_study(const UnturnedRows& queries, const UnturnedRows& keys, double scale,
                           std::span<const std::int64_t> targets, const BandFrequencies& bands,
                           std::span<const std::int64_t> distances);

/// Standard deviation that decides whether targets stand out, over all distances of a study.
double mean_deviation(const MatchedStudy& study);

}  // namespace volvelle
