// What rotary positions let a model's heads retrieve, from its configuration and from a text: the
// frequencies and what follows from them alone, and for every head the logit curve that its mean
// queries and keys predict, beside the measured one (RoAM).
#pragma once

#include <span>
#include <vector>

#include "eval/model_rotation.hpp"
#include "rope/address_kernel.hpp"
#include "rope/retrieval_range.hpp"
#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// What the configuration alone says.
struct RotaryFacts {
  std::vector<double> wavelengths;  // [n_bands]
  std::int64_t band_alias = 0;      // of the slowest band
  KernelAlias kernel_alias;         // up to `length`
  std::vector<std::int64_t>
      crossings;  // where the kernel first falls below .75, .5, .25, 0; -1: nowhere
  std::vector<double> address_capacity;  // at distances 64, 512, 4096, failure probability .05
};
RotaryFacts rotary_facts(const BandFrequencies& bands, std::int64_t length);

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
  double range = 0.0;        // law, at half of the summed amplitudes
  double sink_mass = 0.0;    // attention of late queries on the first four tokens
  double key_rank = 0.0;     // exponential of the entropy of the keys' spectrum
  double query_share = 0.0;  // longest band that a query had, over the bound that the weights give
                             // it; 0: no bound is known
  std::vector<double> recall;       // predicted share of the best 64 keys that codes of ranks
                                    // kRecallRanks find
  std::vector<double> band_shares;  // [n_bands] of the amplitudes
  std::vector<double> predicted;    // [curve_distances()] logits
  std::vector<double> measured;
};

inline constexpr int kRecallRanks[] = {16, 32, 64};

/// Where curves are kept: about 48 distances up to the last, evenly in their logarithm.
std::vector<std::int64_t> curve_distances(std::int64_t max_distance);

struct RotaryStudyOptions {
  std::int64_t max_distance = 1024;
  SessionOptions session;
};

/// Reads the tokens exactly. Layers with a window of their own and those of unknown rotation are
/// left out. Cost: max_distance x tokens products of heads.
Result<std::vector<RotaryHead>> run_rotary_study(const Model& model,
                                                 const ModelRotations& rotations,
                                                 std::span<const TokenId> tokens,
                                                 const RotaryStudyOptions& options,
                                                 const ProgressSink& progress);

}  // namespace volvelle
