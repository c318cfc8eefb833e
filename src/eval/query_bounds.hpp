// How long the queries of every head can be, from the weights alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bounds/edit_bound.hpp"
#include "eval/model_rotation.hpp"
#include "runtime/model_weights.hpp"
#include "volvelle/base/cancel.hpp"
#include "volvelle/base/progress.hpp"

namespace volvelle {

/// Of all layers whose rotation is known.
struct ModelQueryFactors {
  std::vector<std::vector<QueryFactor>> layers;  // [layer][head]; empty: not known
  std::vector<std::string> notes;                // why, one line
};
/// Cost: head_dim^2 n_embd products a head. Fails if the file has changed, or cancelled.
Result<ModelQueryFactors> model_query_factors(const Model& model, const ModelRotations& rotations,
                                              const CancelToken& cancel,
                                              const ProgressSink& progress);

/// Says that bounds from weights are of exact activations.
inline constexpr const char* kRoundedActivations =
    "weights are not F32: the engine rounds what it multiplies with them, so bounds of queries "
    "hold "
    "for exact activations and not to the last bits of this model's";

/// What no query of a head exceeds, for any token, prompt and position, of exact activations;
/// before the scale of logits.
struct QueryBound {
  int layer = 0;
  int head = 0;
  int band = 0;               // the band that can be longest
  double longest_band = 0.0;  // its length
  double rotated = 0.0;       // length of all bands together
};
/// By layer and head.
std::vector<QueryBound> query_bounds(const ModelQueryFactors& factors);

}  // namespace volvelle
