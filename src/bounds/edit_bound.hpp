// By how much an edit of a stored key can change a score, at any position and for any query that a
// model can make: an edit-side factor that is known when the key is compressed, times a query-side
// factor that is known from the weights (RoAM).
//
//   |s' - s| <= sum_b |q_b| a_b,   a_b = |K'_b - K_b| of the stored (rotated) key, band by band
//
// Rotation turns a band and keeps its length, so no position is in it. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rope/frequencies.hpp"
#include "volvelle/base/result.hpp"
#include "volvelle/rope/rope_config.hpp"

namespace volvelle {

/// Where the bands of a head lie: pairs of its first `rotated_dims` dimensions.
struct BandLayout {
  RopeLayout layout = RopeLayout::kHalfSplit;  // kAdjacentPairs or kHalfSplit
  int head_dim = 0;
  int rotated_dims = 0;
  int n_bands() const noexcept { return rotated_dims / 2; }
  int first(int band) const noexcept {
    return layout == RopeLayout::kAdjacentPairs ? 2 * band : band;
  }
  int second(int band) const noexcept {
    return layout == RopeLayout::kAdjacentPairs ? 2 * band + 1 : band + n_bands();
  }
};

/// An edit of a key, as lengths.
struct BandEdit {
  std::vector<double> band;  // [n_bands]
  double unrotated = 0.0;    // of the dimensions that are not rotated
};
/// Between two stored keys [head_dim]: in the frame of the store, so edits that move a key count
/// too.
BandEdit edit_between(const BandLayout& layout, std::span<const float> stored,
                      std::span<const float> edited);

/// What turning a stored key [head_dim] by `by` more positions, or fewer, does to it, known without
/// doing it: band b moves by 2 |sin(theta_b by / 2)| |k_b|. `turn_error`: of the arithmetic of the
/// turn, relative to the band's length (kFloatTurn); 0: an exact turn. Rounded up. Precondition:
/// angles of `bands` are exact products, not kFloatAngles.
BandEdit edit_of_shift(const BandLayout& layout, const BandFrequencies& bands,
                       std::span<const float> stored, std::int64_t by, double turn_error);

/// What queries of one head can be, for any token, prompt and position.
struct QueryFactor {
  std::vector<double> band;  // Q_b: the longest band b that a query can have
  std::vector<double>
      blocks;                // [n_bands, n_bands]: norms of the blocks of the queries' Gram matrix
  double spectral = 0.0;     // the longest rotated part of a query, without its bias
  std::vector<double> bias;  // [n_bands]: lengths of the bias, which `blocks` and `spectral` lack
  double unrotated = 0.0;    // the longest unrotated part, with its bias
};

/// The norm in front of a projection: x -> gain * x / rms(x), or with the mean taken off first.
enum class InputNorm { kRms, kLayer };

/// A query head as weights: q = W norm(x) + bias.
struct QueryWeights {
  std::span<const float> weight;   // [head_dim, n_embd]
  std::span<const float> bias{};   // [head_dim], or nothing
  std::span<const float> gain{};   // [n_embd] of the norm, or nothing (ones)
  std::span<const float> shift{};  // [n_embd] of the norm, or nothing
  InputNorm norm = InputNorm::kRms;
  int n_embd = 0;
};
/// Cost: head_dim^2 n_embd products.
Result<QueryFactor> query_factor(const BandLayout& layout, const QueryWeights& weights);
/// The same for models that normalise each head's query before rotation, q = gain * q / rms(q): no
/// weights are needed. gain: [head_dim].
Result<QueryFactor> normalised_query_factor(const BandLayout& layout, std::span<const float> gain);

/// The factor of queries that are multiplied behind the projection: rotated dimensions by
/// `rotated`, the others by `unrotated`.
void scale_queries(QueryFactor& factor, double rotated, double unrotated);

/// The least of the three bounds of a score's change, rounded up. For logits multiply by their
/// scale.
double edit_bound(const QueryFactor& factor, const BandEdit& edit);
/// The same for one query whose rotated row [head_dim] is known.
double edit_bound(const BandLayout& layout, std::span<const float> query, const BandEdit& edit);

}  // namespace volvelle
