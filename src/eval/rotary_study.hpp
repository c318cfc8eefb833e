// What rotary positions let a model's heads retrieve on a text: for every head the logit curve that
// its mean queries and keys predict, beside the measured one, and how far at any distance a key
// stands out that should be found (RoAM).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "eval/model_rotation.hpp"
#include "eval/query_bounds.hpp"
#include "eval/rotary_facts.hpp"
#include "index/head_bands.hpp"
#include "rope/address_kernel.hpp"
#include "rope/retrieval_range.hpp"
#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// Distances up to which a mean logit stays at or above a threshold; one below the share of
/// dimensions that do not turn counts as that share.
struct ThresholdRange {
  double threshold = 0.0;
  std::int64_t searched = 0;  // `smoothed` and `hard` of this much: at least this much
  RetrievalRange range;
};

/// How well a head tells keys that it should find from others at one distance.
struct RetrievalAt {
  TargetLogits logits;
  double z = 0.0;
  double capacity = 0.0;             // others among which the target is the largest, failure
                                     // probability .05
  double ln_softmax_capacity = 0.0;  // ln of those among which it keeps half of the attention; 0 if
                                     // it does not stand out
};

struct RotaryHead {
  int layer = 0;
  int head = 0;
  double raw_r = 0.0;        // correlation of predicted and measured logits over distances
  double detrended_r = 0.0;  // with intercept and ln distance taken off both
  double linear_r = 0.0;     // with intercept and distance taken off both
  double ceiling_r = 0.0;    // what noise of the measured means leaves of a perfect prediction
  double slow_share = 0.0;   // of the amplitudes: bands of the slower half
  double induction_z = 0.0;  // standard deviations by which the key behind an earlier occurrence of
                             // the same token stands out
  double capacity = 0.0;     // others among which it is still the largest, failure probability .05
  double sink_mass = 0.0;    // attention of late queries on the first four tokens
  double key_rank = 0.0;     // exponential of the entropy of the keys' spectrum
  double query_share = 0.0;  // longest band that a query had, over the bound that the weights give
                             // it; 0: no bound is known
  std::vector<double> recall;       // predicted share of the best 64 keys that codes of ranks
                                    // kRecallRanks find
  std::vector<double> band_shares;  // [n_bands] of the amplitudes
  std::vector<double> predicted;    // [curve_distances()] logits
  std::vector<double> measured;
  std::optional<ThresholdRange> range;  // of the predicted curve, at half of its value at distance
                                        // 0; nothing where that is not positive
  KernelAlias alias;                    // of the kernel with `band_shares`, up to kHeadAliasLimit;
                                        // distance -1: it does not come back above 0

  // The key behind an earlier occurrence of the query's token, as a function of its distance;
  // nothing for a text without such pairs.
  std::int64_t n_pairs = 0;
  std::vector<double> matched;                 // [curve_distances()] logits
  std::vector<RetrievalAt> at;                 // [retrieval_distances()]
  std::optional<ThresholdRange> target_range;  // where it is the largest among kFoundAmong others,
                                               // failure probability kNotFound
};

inline constexpr int kFoundAmong = 4;
inline constexpr double kNotFound = 0.5;
inline constexpr std::int64_t kHeadAliasLimit = 16384;
inline constexpr std::int64_t kHeadRangeLimit = 131072;

inline constexpr int kRecallRanks[] = {16, 32, 64};

/// Where curves are kept: about 48 distances up to the last, evenly in their logarithm.
std::vector<std::int64_t> curve_distances(std::int64_t max_distance);

/// Where retrieval is studied: 64, 512, 1024, 4096, 16384, ... as far as the last distance, and
/// that.
std::vector<std::int64_t> retrieval_distances(std::int64_t max_distance);

struct RotaryStudyOptions {
  std::int64_t max_distance = 1024;
  std::int64_t range_limit = kHeadRangeLimit;  // ranges are searched up to here
  SessionOptions session;
};

/// Reads the tokens exactly. Layers with a window of their own and those of unknown rotation are
/// left out. Cost: max_distance x tokens products of heads, and up to 4 n_bands x range_limit for
/// each head's ranges. `factors`: what the weights allow, or nothing.
Result<std::vector<RotaryHead>> run_rotary_study(const Model& model,
                                                 const ModelRotations& rotations,
                                                 const ModelQueryFactors& factors,
                                                 std::span<const TokenId> tokens,
                                                 const RotaryStudyOptions& options,
                                                 const ProgressSink& progress);

}  // namespace volvelle
