// Sums are in double. Cost of a head: n_embd x value_dim products.
#include "eval/layer_outputs.hpp"

#include <string>

#include "base/result_macros.hpp"
#include "runtime/query_path.hpp"

namespace volvelle {

Result<OutputProjection> output_projection(const Model& model, const ModelWeights& weights,
                                           int layer) {
  const std::string name = "blk." + std::to_string(layer) + ".attn_output.weight";
  const LayerShape& shape = model.info().layers[static_cast<std::size_t>(layer)];
  const int n_heads = query_paths(model)[static_cast<std::size_t>(layer)].n_heads;
  const auto size = weights.shape(name);
  if (!size || size->n_columns != n_heads * shape.head_dim_v)
    return Error{ErrorCode::kUnsupported,
                 "weights: no output projection of layer " + std::to_string(layer) +
                     " that fits its heads, so its changes are not bounded"};
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<float> weight, weights.rows(name));
  return OutputProjection{std::move(weight), static_cast<int>(size->n_columns)};
}

void add_head(const OutputProjection& output, int head, const ReadCertificate& found, double norm,
              LayerChange& change) {
  const auto columns = static_cast<std::size_t>(output.n_columns);
  const std::size_t dim = found.change.size();
  change.sum.resize(output.weight.size() / columns, 0.0);
  for (std::size_t row = 0; row < change.sum.size(); ++row) {
    const float* const w =
        output.weight.data() + row * columns + static_cast<std::size_t>(head) * dim;
    for (std::size_t i = 0; i < dim; ++i)
      change.sum[row] += static_cast<double>(w[i]) * found.change[i];
  }
  change.norms.push_back(norm);
  change.bounds.push_back(found.change_bound);
}

}  // namespace volvelle
