// What rotary positions let a model's heads retrieve, from its configuration and from a text: the
// frequencies and what follows from them alone, and for every head the logit curve that its mean
// queries and keys predict, beside the measured one (RoAM).
#pragma once

#include <span>
#include <vector>

#include "rope/address_kernel.hpp"
#include "rope/frequencies.hpp"
#include "rope/retrieval_range.hpp"
#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// The frequencies of a model's own configuration. Fails by name where they depend on what is not
/// read here (a tensor of factors, LongRoPE), and for models without rotary positions.
Result<BandFrequencies> model_frequencies(const RopeConfig& rope);

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
};

struct RotaryStudyOptions {
  std::int64_t max_distance = 1024;
  SessionOptions session;
};

/// Reads the tokens exactly. Layers with a window of their own are left out: their base may be
/// another. Cost: max_distance x tokens products of heads.
Result<std::vector<RotaryHead>> run_rotary_study(const Model& model, const BandFrequencies& bands,
                                                 std::span<const TokenId> tokens,
                                                 const RotaryStudyOptions& options,
                                                 const ProgressSink& progress);

}  // namespace volvelle
