// Layers that say nothing are counted, and the first of their reasons is kept: the others differ in
// the layer's number.
#include "eval/query_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/result_macros.hpp"
#include "eval/head_weights.hpp"
#include "eval/progress_meter.hpp"

namespace volvelle {

Result<ModelQueryFactors> model_query_factors(const Model& model, const ModelRotations& rotations,
                                              const CancelToken& cancel,
                                              const ProgressSink& progress) {
  VOLVELLE_ASSIGN_OR_RETURN(const ModelWeights weights, ModelWeights::open(model));
  ModelQueryFactors found;
  found.layers.resize(model.info().layers.size());
  std::string reason;
  int n_unknown = 0;
  bool rounded = false;  // some weights are not F32
  ProgressMeter meter(progress, "weights", "layers", std::ssize(found.layers));
  for (std::size_t layer = 0; layer < found.layers.size(); ++layer) {
    if (cancel.cancelled()) return Error{ErrorCode::kCancelled, "weights: interrupted"};
    if (rotations.of(static_cast<int>(layer)) != nullptr) {
      Result<std::vector<QueryFactor>> factors =
          query_factors(model, weights, static_cast<int>(layer));
      if (factors.ok()) {
        found.layers[layer] = std::move(factors).value();
        rounded = rounded || !weights.is_float32(query_paths(model)[layer].weight);
      } else {
        if (n_unknown++ == 0) reason = factors.error().message;
      }
    }
    meter.add(1);
  }
  if (n_unknown > 0) {
    found.notes.push_back("no bounds of queries for " + std::to_string(n_unknown) +
                          " layers; the first: " + reason);
  }
  if (rounded) found.notes.push_back(kRoundedActivations);
  return found;
}

std::vector<QueryBound> query_bounds(const ModelQueryFactors& factors) {
  std::vector<QueryBound> bounds;
  for (std::size_t layer = 0; layer < factors.layers.size(); ++layer) {
    for (std::size_t head = 0; head < factors.layers[layer].size(); ++head) {
      const QueryFactor& factor = factors.layers[layer][head];
      const auto longest = std::max_element(factor.band.begin(), factor.band.end());
      const double bias = std::sqrt(
          std::inner_product(factor.bias.begin(), factor.bias.end(), factor.bias.begin(), 0.0));
      bounds.push_back({static_cast<int>(layer), static_cast<int>(head),
                        static_cast<int>(longest - factor.band.begin()), *longest,
                        factor.spectral + bias});
    }
  }
  return bounds;
}

}  // namespace volvelle
