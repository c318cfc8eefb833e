// The probe runs two batches. The first, tokens at positions 0 and 1, shows the nodes. For a model
// with a sliding window of w tokens the second cell is then moved to position w - 2 and the batch
// {w - 1, w} shows the masks: query w - 1 sees position 0, query w does not exactly if the layer
// has a window of w. Invariant: a mask that shows anything else is a refusal.
#include "runtime/graph_probe.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/result_macros.hpp"
#include "runtime/graph_nodes.hpp"

namespace volvelle {
namespace {

constexpr int kBatch = 2;
constexpr std::int64_t kCells = 256;  // the engine rounds up to this

Error refusal(const std::string& what) {
  return Error{ErrorCode::kUnsupported, "model: " + what + "; this kind of layer is not served"};
}

/// Mask value of query i and cell j, or nothing if the mask is of no known kind.
class Mask {
 public:
  explicit Mask(const ggml_tensor* tensor) {
    // The engine may convert the mask first; nothing is computed here, so go back to its input.
    while (tensor != nullptr && tensor->op != GGML_OP_NONE && tensor->src[0] != nullptr)
      tensor = tensor->src[0];
    tensor_ = tensor;
  }
  bool readable() const {
    return tensor_ != nullptr && tensor_->data != nullptr && tensor_->ne[0] >= 2 * kBatch &&
           tensor_->ne[1] >= kBatch &&
           (tensor_->type == GGML_TYPE_F16 || tensor_->type == GGML_TYPE_F32);
  }
  float at(int query, int cell) const {
    const char* const row = static_cast<const char*>(tensor_->data) +
                            query * static_cast<std::ptrdiff_t>(tensor_->nb[1]);
    if (tensor_->type == GGML_TYPE_F32) return reinterpret_cast<const float*>(row)[cell];
    return ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(row)[cell]);
  }

 private:
  const ggml_tensor* tensor_ = nullptr;
};

class Probe {
 public:
  explicit Probe(std::size_t n_layers) : layers_(n_layers), windowed_(n_layers) {}

  static bool on_node(ggml_tensor* node, bool ask, void* self) {
    if (!ask) return true;
    static_cast<Probe*>(self)->visit(node);
    return false;
  }

  /// From now on masks of the batch at {window - 1, window} are looked at.
  void expect_window(std::int64_t window) { window_ = window; }

  Result<std::vector<ProbedLayer>> take() {
    if (problem_) return *problem_;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      ProbedLayer& layer = layers_[i];
      const bool complete = layer.shape.n_kv_heads == 0
                                ? layer.readers == 0
                                : layer.readers > 0 && layer.shape.head_dim_v > 0;
      if (!complete)
        return refusal("layer " + std::to_string(i) +
                       " writes rows that nobody reads, or the "
                       "other way round");
      if (windowed_[i].value_or(false)) layer.shape.window = window_;
    }
    return std::move(layers_);
  }

 private:
  void visit(ggml_tensor* node) {
    if (!problem_ && node->op == GGML_OP_SET_ROWS && window_ == 0) see_store(node);
    if (!problem_ && node->op == GGML_OP_FLASH_ATTN_EXT) see_attention(node);
    if (!problem_ && node->op == GGML_OP_SOFT_MAX) see_softmax(node);
    if (window_ == 0) ops_[node] = node->op;
    node->op = GGML_OP_NONE;  // nothing is computed
  }

  void refuse(const std::string& what) {
    if (!problem_) problem_ = refusal(what);
  }

  ProbedLayer* layer_at(std::int64_t layer, const ggml_tensor* node) {
    if (layer >= 0 && layer < std::ssize(layers_)) return &layers_[static_cast<std::size_t>(layer)];
    refuse(std::string("node '") + node->name + "' belongs to no layer of the model");
    return nullptr;
  }

  void see_store(const ggml_tensor* node) {
    const std::int64_t key = cache_layer(node, kKeyCachePrefix);
    const std::int64_t value = cache_layer(node, kValueCachePrefix);
    if (key < 0 && value < 0) return;  // some other use of the op
    ProbedLayer* const layer = layer_at(std::max(key, value), node);
    if (layer == nullptr) return;
    // Widths now; heads and dimensions when the attention node shows how a row is cut.
    (key >= 0 ? layer->shape.head_dim_k : layer->shape.head_dim_v) =
        static_cast<int>(node->src[0]->ne[0]);
    layer->shape.n_kv_heads = std::max(layer->shape.n_kv_heads, 1);
  }

  void see_attention(const ggml_tensor* node) {
    const std::int64_t index = cache_layer(node->src[1], kKeyCachePrefix);
    if (index < 0)
      return refuse(std::string("attention node '") + node->name +
                    "' reads something else than the KV cache");
    ProbedLayer* const layer = layer_at(index, node);
    if (layer == nullptr) return;
    if (op_param(node, 1) != 0.0f) return refuse("it has position biases (ALiBi)");
    if (window_ > 0) return see_mask(node, static_cast<std::size_t>(index));
    const auto heads = static_cast<int>(node->src[1]->ne[2]);
    const auto dim_k = static_cast<int>(node->src[0]->ne[0]);
    const auto dim_v = static_cast<int>(node->ne[0]);
    const bool first = layer->readers == 0;
    const int width_k = first ? layer->shape.head_dim_k : heads * layer->shape.head_dim_k;
    const int width_v = first ? layer->shape.head_dim_v : heads * layer->shape.head_dim_v;
    const auto n_heads = static_cast<int>(node->src[0]->ne[2]);
    if (width_k != heads * dim_k || width_v != heads * dim_v || heads < 1 || n_heads % heads != 0) {
      return refuse("layer " + std::to_string(index) + " has " + std::to_string(n_heads) +
                    " query heads on " + std::to_string(heads) +
                    " KV heads whose rows have other sizes");
    }
    layer->shape = {heads, dim_k, dim_v, 0};
    if (first) layer->queries = trace_queries(node, dim_k, ops_);
    layer->n_heads = std::max(layer->n_heads, n_heads);
    ++layer->readers;
  }

  void see_softmax(const ggml_tensor* node) {
    // Attention without the fused op (a bias on the scores) reads the cache through plain products.
    const ggml_tensor* scores = node->src[0];
    for (int depth = 0; scores != nullptr && depth < 4; ++depth, scores = scores->src[0]) {
      if (cache_layer(scores, kKeyCachePrefix) >= 0)
        return refuse(std::string("node '") + node->name +
                      "' is attention with a bias on its scores");
    }
  }

  /// Cells 0 to 3 hold the positions 0, w - 2, w - 1 and w; the queries are at w - 1 and w.
  void see_mask(const ggml_tensor* node, std::size_t index) {
    const Mask mask(node->src[3]);
    if (!mask.readable())
      return refuse("layer " + std::to_string(index) + " has no mask that can be read");
    const auto visible = [&](int query, int cell) { return mask.at(query, cell) == 0.0f; };
    const bool causal = visible(0, 0) && visible(0, 1) && visible(0, 2) && !visible(0, 3) &&
                        visible(1, 1) && visible(1, 2) && visible(1, 3);
    if (!causal) {
      return refuse("layer " + std::to_string(index) +
                    " does not attend to the last tokens of a plain sliding window");
    }
    const bool windowed = !visible(1, 0);
    if (windowed_[index].value_or(windowed) != windowed)
      return refuse("layer " + std::to_string(index) + " is read through different windows");
    windowed_[index] = windowed;
  }

  std::vector<ProbedLayer> layers_;
  std::vector<std::optional<bool>> windowed_;
  NodeOps ops_;  // of the first batch's nodes
  std::int64_t window_ = 0;
  std::optional<Error> problem_;
};

Status run(llama_context* context, engine::Batch& batch, std::int64_t first_position) {
  batch.clear();
  for (int i = 0; i < kBatch; ++i) batch.add(0, first_position + i, 0, i + 1 == kBatch);
  const int rc = llama_decode(context, batch.get());
  if (rc == 0) return {};
  return Error{ErrorCode::kEngine, "model: the engine could not build its graph, code " +
                                       std::to_string(rc) + ": " + engine::take_errors()};
}

Status show_window(llama_context* context, engine::Batch& batch, std::int64_t window) {
  if (window < kBatch + 1)
    return refusal("a sliding window of " + std::to_string(window) + " tokens is too narrow");
  llama_memory_t memory = llama_get_memory(context);
  if (!llama_memory_can_shift(memory))
    return refusal("a sliding window whose masks can not be checked");
  llama_memory_seq_add(memory, 0, 1, 2, static_cast<llama_pos>(window - 3));
  return run(context, batch, window - 1);
}

}  // namespace

Result<std::vector<ProbedLayer>> probe_layers(llama_model* model) {
  Probe probe(static_cast<std::size_t>(llama_model_n_layer(model)));
  engine::ContextRequest request;
  request.n_ctx = kCells;
  request.n_ubatch = kBatch;
  request.callback = &Probe::on_node;
  request.callback_data = &probe;
  const engine::ContextPtr context = engine::make_context(model, request);
  if (!context) {
    return Error{ErrorCode::kEngine,
                 "model: the engine could not make a context: " + engine::take_errors()};
  }
  engine::Batch batch(kBatch);
  VOLVELLE_RETURN_IF_ERROR(run(context.get(), batch, 0));
  const std::int64_t window = llama_model_n_swa(model);
  if (window > 0) {
    probe.expect_window(window);
    VOLVELLE_RETURN_IF_ERROR(show_window(context.get(), batch, window));
  }
  return probe.take();
}

}  // namespace volvelle
