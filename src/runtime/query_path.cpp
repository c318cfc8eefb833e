// From an attention node back to the layer's input, step by step. Every step must be one that is
// known; the first that is not ends the walk with its name.
#include "runtime/query_path.hpp"

#include "runtime/graph_nodes.hpp"
#include "runtime/model_impl.hpp"

namespace volvelle {
namespace {

class Walk {
 public:
  Walk(const ggml_tensor* node, const NodeOps& ops) : at_(node), ops_(ops) {}

  int op() const { return op_of(at_); }
  std::string name() const {
    return at_ == nullptr ? "nothing" : std::string("'") + at_->name + "'";
  }
  int op_of(const ggml_tensor* node) const {
    if (node == nullptr) return GGML_OP_NONE;
    const auto found = ops_.find(node);
    return found == ops_.end() ? GGML_OP_NONE : found->second;
  }
  /// A tensor of the model: no node of the graph.
  bool is_leaf(const ggml_tensor* node) const {
    return node != nullptr && !ops_.contains(node) && node->name[0] != '\0';
  }
  const ggml_tensor* at() const { return at_; }
  const NodeOps& ops() const { return ops_; }
  void up() { at_ = at_->src[0]; }

  /// Over nodes that only look at the same numbers in another shape; false if some are left out.
  bool skip_views() {
    while (at_ != nullptr) {
      const int kind = op();
      if (kind == GGML_OP_VIEW && !is_front(at_)) return false;
      if (kind != GGML_OP_VIEW && kind != GGML_OP_RESHAPE && kind != GGML_OP_PERMUTE &&
          kind != GGML_OP_CONT && kind != GGML_OP_TRANSPOSE)
        return true;
      up();
    }
    return false;
  }
  /// The same, and over multiplications by a number, whose product goes to `scale`.
  bool skip_scales(double& scale) {
    while (skip_views()) {
      if (op() != GGML_OP_SCALE || op_param(at_, 1) != 0.0f) return true;
      scale *= static_cast<double>(op_param(at_, 0));
      up();
    }
    return false;
  }
  /// x * t or x + t with a tensor t of the model: its name, and on to x.
  bool take(int kind, std::string& name) {
    if (op() != kind || !is_leaf(at_->src[1])) return false;
    name = at_->src[1]->name;
    up();
    return true;
  }

 private:
  /// A view of the first numbers of every token, heads side by side.
  static bool is_front(const ggml_tensor* view) {
    return view->view_offs == 0 && view->nb[0] == sizeof(float) &&
           (view->ne[2] == 1 || view->nb[1] == static_cast<std::size_t>(view->ne[0]) * view->nb[0]);
  }

  const ggml_tensor* at_;
  const NodeOps& ops_;
};

RopeLayout layout_of_mode(int mode) {
  if (mode == GGML_ROPE_TYPE_NEOX) return RopeLayout::kHalfSplit;
  return mode == 0 ? RopeLayout::kAdjacentPairs : RopeLayout::kOther;
}

RopeNode read_rope(const ggml_tensor* node) {
  RopeNode rope;
  rope.rotated_dims = node->op_params[1];
  const bool offset = node->op_params[15] != 0;  // turns dimensions behind others
  rope.layout = offset ? RopeLayout::kOther : layout_of_mode(node->op_params[2]);
  rope.original_context = node->op_params[4];
  rope.base = static_cast<double>(op_param(node, 5));
  rope.frequency_scale = static_cast<double>(op_param(node, 6));
  rope.extrapolation = static_cast<double>(op_param(node, 7));
  rope.attention_factor = static_cast<double>(op_param(node, 8));
  rope.beta_fast = static_cast<double>(op_param(node, 9));
  rope.beta_slow = static_cast<double>(op_param(node, 10));
  if (node->src[2] != nullptr) rope.factors = node->src[2]->name;
  return rope;
}

/// norm(x) * gain + shift in front of the weight.
std::string trace_input(Walk& walk, QueryPath& path) {
  if (!walk.skip_views()) return "a part of a tensor";
  walk.take(GGML_OP_ADD, path.shift);
  walk.take(GGML_OP_MUL, path.gain);
  path.layer_norm = walk.op() == GGML_OP_NORM;
  if (path.layer_norm || walk.op() == GGML_OP_RMS_NORM) return {};
  return walk.name() + " in front of the projection is no norm";
}

std::string trace(Walk& walk, std::int64_t head_dim, QueryPath& path) {
  if (!walk.skip_scales(path.scale)) return "a part of a tensor";
  if (walk.op() == GGML_OP_ROPE) {
    path.rope = read_rope(walk.at());
    walk.up();
    if (!walk.skip_scales(path.scale)) return "a part of a tensor";
  }
  std::string gain;
  if (walk.take(GGML_OP_MUL, gain) && walk.op() != GGML_OP_RMS_NORM)
    return "'" + gain + "' scales queries without a norm";
  if (walk.op() == GGML_OP_RMS_NORM) {
    path.head_norm = true;
    path.head_gain = gain;
    path.joint_norm = walk.at()->ne[0] != head_dim;
    walk.up();
    if (!walk.skip_views()) return {};  // what is normalised need not be known
  }
  walk.take(GGML_OP_ADD, path.bias);
  if (!walk.skip_views()) return "a part of a tensor";
  if (walk.op() != GGML_OP_MUL_MAT || !walk.is_leaf(walk.at()->src[0]))
    return walk.name() + " is no product with a weight";
  path.weight = walk.at()->src[0]->name;
  Walk input(walk.at()->src[1], walk.ops());
  return trace_input(input, path);
}

}  // namespace

QueryPath trace_queries(const ggml_tensor* attention, std::int64_t head_dim, const NodeOps& ops) {
  QueryPath path;
  path.n_heads = static_cast<int>(attention->src[0]->ne[2]);
  path.logit_scale = static_cast<double>(op_param(attention, 0));
  path.capped = op_param(attention, 2) != 0.0f;
  path.sink_logits = attention->src[4] != nullptr;
  Walk walk(attention->src[0], ops);
  path.unknown = trace(walk, head_dim, path);
  return path;
}

std::span<const QueryPath> query_paths(const Model& model) noexcept { return model.impl().queries; }

}  // namespace volvelle
