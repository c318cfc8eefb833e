// What all heads of a layer together add to the stream, and how changes of their outputs change it.
#pragma once

#include <vector>

#include "eval/read_certificates.hpp"
#include "runtime/model_weights.hpp"

namespace volvelle {

/// The projection behind the heads of a layer, [n_embd, n_heads * value_dim]; nothing if unknown.
struct OutputProjection {
  std::vector<float> weight;
  int n_columns = 0;
};
Result<OutputProjection> output_projection(const Model& model, const ModelWeights& weights,
                                           int layer);

/// What all heads of a layer together change at one position.
struct LayerChange {
  std::vector<double> sum;            // [n_embd]
  std::vector<double> norms, bounds;  // [n_heads]
};
/// Adds what query head `head` changes; `norm`: of its part of the projection.
void add_head(const OutputProjection& output, int head, const ReadCertificate& found, double norm,
              LayerChange& change);

}  // namespace volvelle
