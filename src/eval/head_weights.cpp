// Names of tensors come from the graph; the key projection is the one beside the queries'.
#include "eval/head_weights.hpp"

#include <cmath>

#include "base/result_macros.hpp"
#include "eval/model_rotation.hpp"

namespace volvelle {
namespace {

Error unknown(int layer, const std::string& why) {
  return Error{ErrorCode::kUnsupported, "weights: how layer " + std::to_string(layer) +
                                            " makes its queries is not known: " + why};
}

/// A tensor's numbers, or none for no name.
Result<std::vector<float>> optional_rows(const ModelWeights& weights, const std::string& name) {
  if (name.empty()) return std::vector<float>();
  return weights.rows(name);
}

/// Head h's part of a vector for all heads, or of one for each.
std::span<const float> part_of(const std::vector<float>& all, int head, int dim) {
  const std::span<const float> whole(all);
  if (std::ssize(all) <= dim) return whole;
  return whole.subspan(static_cast<std::size_t>(head) * static_cast<std::size_t>(dim),
                       static_cast<std::size_t>(dim));
}

/// What a layer's queries are made of.
struct QueryTensors {
  int dim = 0;
  int n_embd = 0;
  std::vector<float> weight;  // [n_heads, dim, n_embd]
  std::vector<float> bias, gain, shift, head_gain;
};

Result<QueryTensors> read_queries(const Model& model, const ModelWeights& weights, int layer) {
  const QueryPath& path = query_paths(model)[static_cast<std::size_t>(layer)];
  const LayerShape& shape = model.info().layers[static_cast<std::size_t>(layer)];
  QueryTensors read;
  read.dim = shape.head_dim_k;
  const std::int64_t n_rows = static_cast<std::int64_t>(path.n_heads) * read.dim;
  VOLVELLE_ASSIGN_OR_RETURN(read.head_gain, optional_rows(weights, path.head_gain));
  if (path.head_norm) return read;  // the rest does not matter
  if (!path.unknown.empty()) return unknown(layer, path.unknown);
  const auto weight = weights.shape(path.weight);
  if (!weight) return unknown(layer, "its weight is not in the file");
  read.n_embd = static_cast<int>(weight->n_columns);
  VOLVELLE_ASSIGN_OR_RETURN(read.weight, weights.rows(path.weight, n_rows));
  VOLVELLE_ASSIGN_OR_RETURN(read.bias, optional_rows(weights, path.bias));
  VOLVELLE_ASSIGN_OR_RETURN(read.gain, optional_rows(weights, path.gain));
  VOLVELLE_ASSIGN_OR_RETURN(read.shift, optional_rows(weights, path.shift));
  return read;
}

Result<QueryFactor> normalised_factor(const QueryPath& path, const BandLayout& layout,
                                      std::span<const float> gain, int n_heads) {
  const std::vector<float> ones(static_cast<std::size_t>(layout.head_dim), 1.0f);
  VOLVELLE_ASSIGN_OR_RETURN(
      QueryFactor factor,
      normalised_query_factor(layout, gain.empty() ? std::span<const float>(ones) : gain));
  // One head may have all of the length that all heads share.
  const double joint = path.joint_norm ? std::sqrt(static_cast<double>(n_heads)) : 1.0;
  scale_queries(factor, joint, joint);
  return factor;
}

/// Columns by the gain in front, rows by the gain of heads behind.
std::vector<float> with_gains(std::vector<float> matrix, int n_embd, std::span<const float> columns,
                              std::span<const float> rows) {
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(n_embd);
    if (!columns.empty()) matrix[i] *= columns[i % static_cast<std::size_t>(n_embd)];
    if (!rows.empty()) matrix[i] *= rows[row % rows.size()];
  }
  return matrix;
}

/// The tensor of keys beside one of queries: "blk.0.attn_q.weight" to "blk.0.attn_k.weight"; a
/// fused one ("attn_qkv") is its own.
std::string key_name(std::string query) {
  const std::size_t at = query.find("attn_q");
  if (at != std::string::npos && query.compare(at, 8, "attn_qkv") != 0) query[at + 5] = 'k';
  return query;
}

}  // namespace

Result<BandLayout> band_layout(const Model& model, int layer) {
  const QueryPath& path = query_paths(model)[static_cast<std::size_t>(layer)];
  const LayerShape& shape = model.info().layers[static_cast<std::size_t>(layer)];
  if (!path.rope)
    return unknown(layer,
                   path.unknown.empty() ? std::string("they are not rotated") : path.unknown);
  return BandLayout{path.rope->layout, shape.head_dim_k, path.rope->rotated_dims};
}

Result<std::vector<QueryFactor>> query_factors(const Model& model, const ModelWeights& weights,
                                               int layer) {
  VOLVELLE_ASSIGN_OR_RETURN(const BandLayout layout, band_layout(model, layer));
  VOLVELLE_ASSIGN_OR_RETURN(const QueryTensors read, read_queries(model, weights, layer));
  const QueryPath& path = query_paths(model)[static_cast<std::size_t>(layer)];
  // Divisors change no length; the factor of cos and sin does.
  VOLVELLE_ASSIGN_OR_RETURN(const BandFrequencies bands, node_frequencies(*path.rope));
  std::vector<QueryFactor> factors;
  for (int head = 0; head < path.n_heads; ++head) {
    QueryFactor factor;
    if (path.head_norm) {
      VOLVELLE_ASSIGN_OR_RETURN(
          factor,
          normalised_factor(path, layout, part_of(read.head_gain, head, read.dim), path.n_heads));
    } else {
      const auto size = static_cast<std::size_t>(read.dim) * static_cast<std::size_t>(read.n_embd);
      const QueryWeights of_head{
          std::span(read.weight).subspan(static_cast<std::size_t>(head) * size, size),
          read.bias.empty() ? std::span<const float>() : part_of(read.bias, head, read.dim),
          read.gain,
          read.shift,
          path.layer_norm ? InputNorm::kLayer : InputNorm::kRms,
          read.n_embd};
      VOLVELLE_ASSIGN_OR_RETURN(factor, query_factor(layout, of_head));
    }
    scale_queries(factor, path.scale * bands.attention_factor, path.scale);
    factors.push_back(std::move(factor));
  }
  return factors;
}

Result<std::vector<HeadWeights>> head_weights(const Model& model, const ModelWeights& weights,
                                              int layer) {
  const QueryPath& path = query_paths(model)[static_cast<std::size_t>(layer)];
  const LayerShape& shape = model.info().layers[static_cast<std::size_t>(layer)];
  if (!path.unknown.empty() || path.weight.empty()) return unknown(layer, path.unknown);
  const int dim = shape.head_dim_k;
  const std::int64_t query_rows = static_cast<std::int64_t>(path.n_heads) * dim;
  const std::int64_t key_rows = static_cast<std::int64_t>(shape.n_kv_heads) * dim;
  const bool fused = key_name(path.weight) == path.weight;
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<float> query,
                            weights.rows(path.weight, query_rows + (fused ? key_rows : 0)));
  const int n_embd = static_cast<int>(weights.shape(path.weight)->n_columns);
  std::vector<float> key;
  if (fused) {
    const auto from = query.begin() + static_cast<std::ptrdiff_t>(query_rows * n_embd);
    key.assign(from, query.end());
    query.erase(from, query.end());
  } else {
    VOLVELLE_ASSIGN_OR_RETURN(key, weights.rows(key_name(path.weight), key_rows));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> gain, optional_rows(weights, path.gain));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> q_gain,
                            optional_rows(weights, path.head_gain));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> k_gain,
                            optional_rows(weights, key_name(path.head_gain)));
  query = with_gains(std::move(query), n_embd, gain, q_gain);
  key = with_gains(std::move(key), n_embd, gain, k_gain);
  std::vector<HeadWeights> heads;
  const int group = path.n_heads / shape.n_kv_heads;
  const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(dim) * n_embd;
  for (std::ptrdiff_t kv = 0; kv < shape.n_kv_heads; ++kv) {
    heads.push_back({dim,
                     group,
                     n_embd,
                     {key.begin() + kv * size, key.begin() + (kv + 1) * size},
                     {query.begin() + kv * group * size, query.begin() + (kv + 1) * group * size}});
  }
  return heads;
}

}  // namespace volvelle
