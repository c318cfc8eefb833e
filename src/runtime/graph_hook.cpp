// Rewriting of graph nodes and the ops that take their place; see graph_hook.hpp for the invariant.
// Ops are called by every engine thread with (ith, nth): rows are dealt out by token, attention
// splits itself. Ops allocate nothing and never fail: they leave a problem for finish_ubatch().
#include "runtime/graph_hook.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "runtime/node_names.hpp"

namespace volvelle {
namespace {

bool on_host(const ggml_tensor* tensor) noexcept {
  const ggml_backend_buffer_t buffer = base_tensor(tensor)->buffer;
  return buffer == nullptr || ggml_backend_buffer_is_host(buffer);
}

/// Makes `node` a custom op. ggml offers no setter for this, but a node's op and op_params are all
/// that distinguishes it.
void make_custom(ggml_tensor* node, ggml_custom_op_t function, void* userdata) {
  const ggml_init_params params{4 * ggml_tensor_overhead(), nullptr, true};
  ggml_context* const scratch = ggml_init(params);
  ggml_tensor* source = ggml_new_tensor_1d(scratch, GGML_TYPE_F32, 1);
  const ggml_tensor* const custom = ggml_custom_4d(scratch, GGML_TYPE_F32, 1, 1, 1, 1, &source, 1,
                                                   function, GGML_N_TASKS_MAX, userdata);
  node->op = custom->op;
  std::memcpy(node->op_params, custom->op_params, sizeof(node->op_params));
  ggml_free(scratch);
}

float op_param(const ggml_tensor* node, int index) noexcept {
  float value = 0;
  std::memcpy(&value, reinterpret_cast<const char*>(node->op_params) + index * sizeof(float),
              sizeof(float));
  return value;
}

std::ptrdiff_t floats(std::size_t bytes) noexcept {
  return static_cast<std::ptrdiff_t>(bytes / sizeof(float));
}

}  // namespace

GraphHook::GraphHook(Options options, AttendWorkspace workspace)
    : options_(std::move(options)), workspace_(std::move(workspace)) {
  for (std::size_t i = 0; i < options_.layout.layers.size(); ++i) {
    auto ops = std::make_unique<LayerOps>();
    ops->hook = this;
    ops->layer = LayerIndex(static_cast<std::int64_t>(i));
    layers_.push_back(std::move(ops));
  }
}

void GraphHook::begin_ubatch(ContextMemory& memory, std::int64_t n_tokens) noexcept {
  memory_ = &memory;
  n_tokens_ = n_tokens;
  last_mask_ = nullptr;
  problem_ = Problem::kNone;
  for (const auto& ops : layers_) {
    ops->keys_written = 0;
    ops->values_written = 0;
    ops->attended = 0;
  }
}

Status GraphHook::finish_ubatch(bool completed) {
  memory_ = nullptr;
  const bool not_finite = workspace_.take_not_finite();
  if (problem_ != Problem::kNone) {
    return Error{ErrorCode::kUnsupported, std::string("run: attention node '") + problem_node_ +
                                              "' can not be served: " + reason(problem_)};
  }
  if (!completed) return {};
  mask_checked_ = mask_checked_ || n_tokens_ > 1;  // one token shows nothing about causality
  for (const auto& ops : layers_) {
    if (ops->keys_written == 1 && ops->values_written == 1 && ops->attended == 1) continue;
    return Error{
        ErrorCode::kUnsupported,
        "run: layer " + std::to_string(ops->layer.value()) +
            " of this model does not write keys once, write values once and attend once (" +
            std::to_string(ops->keys_written) + ", " + std::to_string(ops->values_written) + ", " +
            std::to_string(ops->attended) + " times); this kind of layer is not served yet"};
  }
  if (not_finite) {
    return Error{
        ErrorCode::kNumeric,
        "run: attention gave NaN or infinity; the model file is damaged or its numbers overflow"};
  }
  return {};
}

const char* GraphHook::reason(Problem problem) noexcept {
  switch (problem) {
    case Problem::kNone:
      return "";
    case Problem::kShape:
      return "its shape differs from the model's metadata";
    case Problem::kType:
      return "its rows are not f32";
    case Problem::kDevice:
      return "its data is not in host memory";
    case Problem::kBias:
      return "it has a position bias (ALiBi)";
    case Problem::kLayer:
      return "it belongs to no layer of the model";
    case Problem::kOrder:
      return "it would read rows of this step before they are written";
    case Problem::kMask:
      return "its mask is not plain causal attention over one sequence";
  }
  return "";
}

bool GraphHook::should_abort(void* self) {
  const auto* hook = static_cast<const GraphHook*>(self);
  return hook->options_.cancel.cancelled() || hook->problem_ != Problem::kNone;
}

bool GraphHook::on_node(ggml_tensor* node, bool ask, void* self) {
  if (ask) static_cast<GraphHook*>(self)->visit(node);
  return !ask;  // "do you need this one's data": never, so the whole graph runs in one go
}

void GraphHook::visit(ggml_tensor* node) {
  if (node->op == GGML_OP_SET_ROWS) rewrite_store(node);
  if (node->op == GGML_OP_FLASH_ATTN_EXT) rewrite_attention(node);
}

void GraphHook::fail(Problem problem, const char* node_name) noexcept {
  Problem none = Problem::kNone;
  if (!problem_.compare_exchange_strong(none, problem)) return;
  std::strncpy(problem_node_, node_name, sizeof(problem_node_) - 1);
}

void GraphHook::rewrite_store(ggml_tensor* node) {
  const std::int64_t key_layer = cache_layer(node, kKeyCachePrefix);
  const std::int64_t value_layer = cache_layer(node, kValueCachePrefix);
  if (key_layer < 0 && value_layer < 0) return;  // some other use of the op
  const std::int64_t layer = key_layer >= 0 ? key_layer : value_layer;
  if (layer >= static_cast<std::int64_t>(layers_.size())) return fail(Problem::kLayer, node->name);

  const ggml_tensor* const rows = node->src[0];
  const LayerShape& shape = layer_shape(LayerIndex(layer));
  const std::int64_t width =
      shape.n_kv_heads * (key_layer >= 0 ? shape.head_dim_k : shape.head_dim_v);
  if (rows->type != GGML_TYPE_F32) return fail(Problem::kType, node->name);
  if (rows->ne[0] != width || rows->nb[0] != sizeof(float))
    return fail(Problem::kShape, node->name);
  if (!on_host(rows)) return fail(Problem::kDevice, node->name);
  make_custom(node, key_layer >= 0 ? write_keys : write_values,
              layers_[static_cast<std::size_t>(layer)].get());
}

GraphHook::Problem GraphHook::check_attention(const ggml_tensor* node, std::int64_t layer) const {
  if (layer < 0 || layer >= static_cast<std::int64_t>(layers_.size())) return Problem::kLayer;
  const ggml_tensor* const q = node->src[0];
  const LayerShape& shape = layer_shape(LayerIndex(layer));
  if (q->type != GGML_TYPE_F32 || node->type != GGML_TYPE_F32) return Problem::kType;
  if (q->nb[0] != sizeof(float) || q->ne[3] != 1 || q->ne[0] != shape.head_dim_k ||
      node->ne[0] != shape.head_dim_v) {
    return Problem::kShape;
  }
  if (q->ne[2] < 1 || q->ne[2] % shape.n_kv_heads != 0 || node->src[1]->ne[2] != shape.n_kv_heads)
    return Problem::kShape;
  if (cache_layer(node->src[2], kValueCachePrefix) != layer) return Problem::kLayer;
  if (node->src[3] == nullptr) return Problem::kMask;
  if (op_param(node, 1) != 0.0f) return Problem::kBias;
  if (!on_host(q) || !on_host(node) || (node->src[4] != nullptr && !on_host(node->src[4])))
    return Problem::kDevice;
  return Problem::kNone;
}

void GraphHook::rewrite_attention(ggml_tensor* node) {
  const std::int64_t layer = cache_layer(node->src[1], kKeyCachePrefix);
  const Problem problem = check_attention(node, layer);
  if (problem != Problem::kNone) return fail(problem, node->name);

  LayerOps& ops = *layers_[static_cast<std::size_t>(layer)];
  const LayerShape& shape = layer_shape(LayerIndex(layer));
  ops.shape = AttentionShape{.n_heads = static_cast<int>(node->src[0]->ne[2]),
                             .n_kv_heads = shape.n_kv_heads,
                             .head_dim_k = shape.head_dim_k,
                             .head_dim_v = shape.head_dim_v,
                             .k_type = options_.layout.k_type,
                             .v_type = options_.layout.v_type,
                             .scale = op_param(node, 0),
                             .soft_cap = op_param(node, 2)};
  make_custom(node, attend_layer, &ops);
}

void GraphHook::capture(CapturedRows::Kind kind, const LayerOps& ops, const ggml_tensor* rows,
                        std::int64_t n_heads) noexcept {
  // q is [head_dim, n_tokens, n_heads] (permuted); key and value rows are [n_heads * head_dim,
  // n_tokens].
  const bool query = kind == CapturedRows::Kind::kQuery;
  const std::int64_t head_dim = query ? rows->ne[0] : rows->ne[0] / n_heads;
  options_.capture(CapturedRows{
      .kind = kind,
      .layer = ops.layer,
      .first_position = memory_->next_position(),
      .n_tokens = rows->ne[1],
      .n_heads = n_heads,
      .head_dim = head_dim,
      .data = static_cast<const float*>(rows->data),
      .token_stride = floats(rows->nb[1]),
      .head_stride = query ? floats(rows->nb[2]) : static_cast<std::ptrdiff_t>(head_dim)});
}

void GraphHook::write_rows(CapturedRows::Kind kind, ggml_tensor* dst, int ith, int nth,
                           LayerOps& ops) noexcept {
  GraphHook& hook = *ops.hook;
  const ggml_tensor* const rows = dst->src[0];  // [n_kv_heads * head_dim, n_tokens]
  if (rows->ne[1] != hook.n_tokens_) {
    if (ith == 0) hook.fail(Problem::kShape, dst->name);
    return;
  }
  const bool keys = kind == CapturedRows::Kind::kKey;
  if (ith == 0) {
    ++(keys ? ops.keys_written : ops.values_written);
    if (hook.options_.capture)
      hook.capture(kind, ops, rows, hook.layer_shape(ops.layer).n_kv_heads);
  }
  const auto* const data = static_cast<const char*>(rows->data);
  for (std::int64_t i = ith; i < hook.n_tokens_; i += nth) {
    const auto* const row =
        reinterpret_cast<const float*>(data + i * static_cast<std::int64_t>(rows->nb[1]));
    keys ? hook.memory_->write_k(ops.layer, i, row) : hook.memory_->write_v(ops.layer, i, row);
  }
}

void GraphHook::write_keys(ggml_tensor* dst, int ith, int nth, void* ops) noexcept {
  write_rows(CapturedRows::Kind::kKey, dst, ith, nth, *static_cast<LayerOps*>(ops));
}

void GraphHook::write_values(ggml_tensor* dst, int ith, int nth, void* ops) noexcept {
  write_rows(CapturedRows::Kind::kValue, dst, ith, nth, *static_cast<LayerOps*>(ops));
}

/// The engine's own mask must be what we assume. Its cells are emptied before every ubatch, so cell
/// j holds token j: query i sees exactly the cells 0 to i.
void GraphHook::check_mask(const ggml_tensor* mask) noexcept {
  if (mask == last_mask_) return;  // all layers of a plain model share one mask
  last_mask_ = mask;
  const bool half = mask->type == GGML_TYPE_F16;
  if (!half && mask->type != GGML_TYPE_F32) return fail(Problem::kMask, mask->name);
  for (std::int64_t i = 0; i < n_tokens_; ++i) {
    const char* const row =
        static_cast<const char*>(mask->data) + i * static_cast<std::int64_t>(mask->nb[1]);
    for (std::int64_t j = 0; j < mask->ne[0]; ++j) {
      const float bias = half ? ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(row)[j])
                              : reinterpret_cast<const float*>(row)[j];
      if (bias != 0.0f && bias != -INFINITY) return fail(Problem::kBias, mask->name);
      if ((bias == 0.0f) != (j <= i)) return fail(Problem::kMask, mask->name);
    }
  }
}

void GraphHook::attend_layer(ggml_tensor* dst, int ith, int nth, void* userdata) noexcept {
  auto& ops = *static_cast<LayerOps*>(userdata);
  GraphHook& hook = *ops.hook;
  const auto start = std::chrono::steady_clock::now();
  const ggml_tensor* const q = dst->src[0];
  if (q->ne[1] != hook.n_tokens_) {
    if (ith == 0) hook.fail(Problem::kShape, dst->name);
    return;
  }
  if (ith == 0) {
    ++ops.attended;
    if (ops.keys_written != 1 || ops.values_written != 1) hook.fail(Problem::kOrder, dst->name);
#ifdef NDEBUG
    if (!hook.mask_checked_)  // debug builds look at every ubatch
#endif
      hook.check_mask(dst->src[3]);
    if (hook.options_.capture) hook.capture(CapturedRows::Kind::kQuery, ops, q, q->ne[2]);
  }
  AttendTask task;
  task.shape = ops.shape;
  task.segments = hook.memory_->segments(ops.layer);
  task.visible = hook.memory_->visible();
  task.q = static_cast<const float*>(q->data);
  task.q_token_stride = floats(q->nb[1]);
  task.q_head_stride = floats(q->nb[2]);
  task.out = static_cast<float*>(dst->data);  // [head_dim_v, n_heads, n_tokens]
  task.out_token_stride = floats(dst->nb[2]);
  task.out_head_stride = floats(dst->nb[1]);
  task.sink_logits =
      dst->src[4] != nullptr ? static_cast<const float*>(dst->src[4]->data) : nullptr;
  task.deterministic = hook.options_.deterministic;
  attend(task, hook.workspace_, ith, nth);
  if (ith == 0)
    hook.attention_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace volvelle
