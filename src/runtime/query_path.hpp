// How a layer makes its queries, read off the model's own graph: the tensors that they pass through
// and how they are rotated. What the graph does not show in a known form stays unknown and says so,
// so nothing is concluded from a guess about an architecture. Private to the library.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "volvelle/rope/rope_config.hpp"
#include "volvelle/runtime/model.hpp"

struct ggml_tensor;

namespace volvelle {

/// What a node that rotates queries was given.
struct RopeNode {
  RopeLayout layout = RopeLayout::kNone;
  int rotated_dims = 0;
  double base = 10000.0;
  double frequency_scale = 1.0;  // of frequencies: 1 / factor
  double extrapolation = 0.0;    // YaRN's mix; 0: none
  double attention_factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::int64_t original_context = 0;
  std::string factors;  // name of the tensor that divides frequencies, or nothing
  bool operator==(const RopeNode&) const = default;
};

/// q = scale * rotate(head norm(weight * input norm(x) + bias)); names are those of the model's
/// tensors, empty where a step is left out.
struct QueryPath {
  int n_heads = 0;  // query heads
  std::optional<RopeNode> rope;
  double scale = 1.0;        // of queries
  double logit_scale = 1.0;  // of their products with keys
  bool capped = false;       // logits have a soft cap
  bool sink_logits = false;  // a learned logit without a key takes part in the softmax
  std::string weight;        // its first n_heads * head_dim rows
  std::string bias;
  std::string gain;   // of the norm in front of the weight
  std::string shift;  // of the same
  bool layer_norm = false;
  bool head_norm = false;   // queries are normalised behind the weight
  bool joint_norm = false;  // all heads of a token together
  std::string head_gain;
  std::string unknown;  // why the path is not known further; empty: it is known
};

/// Ops of a graph's nodes before they were changed.
using NodeOps = std::unordered_map<const ggml_tensor*, int>;
/// The path to the queries of an attention node. `head_dim`: of its queries.
QueryPath trace_queries(const ggml_tensor* attention, std::int64_t head_dim, const NodeOps& ops);

/// [n_layers], by the layer whose rows are read; of the first node that reads them.
std::span<const QueryPath> query_paths(const Model& model) noexcept;

}  // namespace volvelle
