// Rewriting of graph nodes and the ops that take their place; see graph_hook.hpp for the invariant.
// Ops are called by every engine thread with (ith, nth): rows are dealt out by token, attention
// splits itself. Ops allocate nothing and never fail: they leave a problem for finish_ubatch().
#include "runtime/graph_hook.hpp"
#include "index/read_audit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "attention/paths.hpp"
#include "runtime/graph_nodes.hpp"

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
    for (int reader = 0; reader < options_.readers[i]; ++reader) {
      ops->readers.push_back(std::make_unique<Reader>(Reader{this, i, {}}));
    }
    layers_.push_back(std::move(ops));
  }
}

void GraphHook::begin_ubatch(std::span<const UbatchPart> parts) noexcept {
  parts_ = parts;
  n_tokens_ = 0;
  for (const UbatchPart& part : parts) n_tokens_ += std::ssize(part.tokens);
  last_mask_ = {};
  problem_ = Problem::kNone;
  for (const auto& ops : layers_) {
    ops->n_readers_seen = 0;
    ops->keys_written = 0;
    ops->values_written = 0;
    ops->attended = 0;
  }
}

Status GraphHook::finish_ubatch(bool completed) {
  parts_ = {};
  const bool not_finite_topk = topk_ && topk_->take_not_finite();
  const bool not_finite = workspace_.take_not_finite() || not_finite_topk;
  if (problem_ != Problem::kNone) {
    return Error{ErrorCode::kUnsupported, std::string("run: attention node '") + problem_node_ +
                                              "' can not be served: " + reason(problem_)};
  }
  if (!completed) return {};
  mask_checked_ = mask_checked_ || n_tokens_ > 1;  // one token shows nothing about causality
  for (const auto& ops : layers_) {
    const int writes = ops->readers.empty() ? 0 : 1;
    const int reads = static_cast<int>(ops->readers.size());
    if (ops->keys_written == writes && ops->values_written == writes && ops->attended == reads)
      continue;
    return Error{ErrorCode::kUnsupported,
                 "run: layer " + std::to_string(ops->layer.value()) + " of this model wrote keys " +
                     std::to_string(ops->keys_written) + " times, values " +
                     std::to_string(ops->values_written) + " times and was attended to " +
                     std::to_string(ops->attended) + " times, expected " + std::to_string(writes) +
                     ", " + std::to_string(writes) + " and " + std::to_string(reads) +
                     "; this kind of layer is not served yet"};
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
      return "its mask is not causal attention within a sequence and the layer's window";
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
  if (ops.n_readers_seen == ops.readers.size()) return fail(Problem::kLayer, node->name);
  Reader& reader = *ops.readers[ops.n_readers_seen++];
  const LayerShape& shape = layer_shape(LayerIndex(layer));
  reader.shape = AttentionShape{.n_heads = static_cast<int>(node->src[0]->ne[2]),
                                .n_kv_heads = shape.n_kv_heads,
                                .head_dim_k = shape.head_dim_k,
                                .head_dim_v = shape.head_dim_v,
                                .k_type = options_.layout.k_type,
                                .v_type = options_.layout.v_type,
                                .scale = op_param(node, 0),
                                .soft_cap = op_param(node, 2)};
  make_custom(node, attend_layer, &reader);
}

void GraphHook::capture(CapturedRows::Kind kind, LayerIndex layer, const ggml_tensor* rows,
                        std::int64_t n_heads) noexcept {
  // q is [head_dim, n_tokens, n_heads] (permuted); key and value rows are [n_heads * head_dim,
  // n_tokens].
  const bool query = kind == CapturedRows::Kind::kQuery;
  const std::int64_t head_dim = query ? rows->ne[0] : rows->ne[0] / n_heads;
  const auto* data = static_cast<const float*>(rows->data);
  for (const UbatchPart& part : parts_) {
    options_.capture(CapturedRows{
        .kind = kind,
        .layer = layer,
        .first_position = part.memory->next_position(),
        .n_tokens = std::ssize(part.tokens),
        .n_heads = n_heads,
        .head_dim = head_dim,
        .data = data,
        .token_stride = floats(rows->nb[1]),
        .head_stride = query ? floats(rows->nb[2]) : static_cast<std::ptrdiff_t>(head_dim)});
    data += std::ssize(part.tokens) * floats(rows->nb[1]);
  }
}

/// Keys and values are read by nobody but the ops that store them, so they are changed in place.
void GraphHook::edit(CapturedRows::Kind kind, LayerIndex layer, const ggml_tensor* rows) noexcept {
  const std::int64_t n_heads = layer_shape(layer).n_kv_heads;
  auto* data = static_cast<float*>(rows->data);
  for (const UbatchPart& part : parts_) {
    options_.edit_rows({kind, layer, part.memory->next_position(), std::ssize(part.tokens), n_heads,
                        rows->ne[0] / n_heads, data, floats(rows->nb[1])});
    data += std::ssize(part.tokens) * floats(rows->nb[1]);
  }
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
      hook.capture(kind, ops.layer, rows, hook.layer_shape(ops.layer).n_kv_heads);
  }
  if (hook.options_.edit_rows) {
    // All rows are changed before the first is stored, so one thread does both.
    if (ith != 0) return;
    hook.edit(kind, ops.layer, rows);
    nth = 1;
  }
  const auto* data = static_cast<const char*>(rows->data);
  const auto stride = static_cast<std::int64_t>(rows->nb[1]);
  std::int64_t first = 0;  // of the part, in the ubatch
  for (const UbatchPart& part : hook.parts_) {
    const std::int64_t n = std::ssize(part.tokens);
    // Token t of the ubatch belongs to thread t mod nth, whatever part it is in.
    for (std::int64_t i = ((ith - first) % nth + nth) % nth; i < n; i += nth) {
      const auto* const row = reinterpret_cast<const float*>(data + (first + i) * stride);
      keys ? part.memory->write_k(ops.layer, i, row) : part.memory->write_v(ops.layer, i, row);
    }
    first += n;
  }
}

void GraphHook::write_keys(ggml_tensor* dst, int ith, int nth, void* ops) noexcept {
  write_rows(CapturedRows::Kind::kKey, dst, ith, nth, *static_cast<LayerOps*>(ops));
}

void GraphHook::write_values(ggml_tensor* dst, int ith, int nth, void* ops) noexcept {
  write_rows(CapturedRows::Kind::kValue, dst, ith, nth, *static_cast<LayerOps*>(ops));
}

/// The engine's own mask must be what we assume. Its cells are emptied before every ubatch, so cell
/// j holds token j: query i sees cell j exactly if both are of the same sequence, j is not later,
/// and their distance is less than the layer's window.
void GraphHook::check_mask(const ggml_tensor* mask, std::int64_t window) noexcept {
  if (last_mask_ == std::pair(mask, window)) return;  // layers share their masks
  last_mask_ = {mask, window};
  const bool half = mask->type == GGML_TYPE_F16;
  if (!half && mask->type != GGML_TYPE_F32) return fail(Problem::kMask, mask->name);
  std::int64_t first = 0;
  for (const UbatchPart& part : parts_) {
    const std::int64_t end = first + std::ssize(part.tokens);
    for (std::int64_t i = first; i < end; ++i) {
      const std::int64_t begin = window > 0 ? std::max(first, i - window + 1) : first;
      const char* const row =
          static_cast<const char*>(mask->data) + i * static_cast<std::int64_t>(mask->nb[1]);
      for (std::int64_t j = 0; j < mask->ne[0]; ++j) {
        const float bias = half ? ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(row)[j])
                                : reinterpret_cast<const float*>(row)[j];
        if (bias != 0.0f && bias != -INFINITY) return fail(Problem::kBias, mask->name);
        if ((bias == 0.0f) != (j >= begin && j <= i)) return fail(Problem::kMask, mask->name);
      }
    }
    first = end;
  }
}

void GraphHook::check_before_attention(const ggml_tensor* node, const Reader& reader) noexcept {
  LayerOps& ops = *layers_[reader.layer];
  ++ops.attended;
  if (ops.keys_written != 1 || ops.values_written != 1) fail(Problem::kOrder, node->name);
#ifdef NDEBUG
  if (!mask_checked_)  // debug builds look at every ubatch
#endif
    check_mask(node->src[3], layer_shape(ops.layer).window);
  if (options_.capture)
    capture(CapturedRows::Kind::kQuery, ops.layer, node->src[0], node->src[0]->ne[2]);
}

AttendTask GraphHook::task_of(const ggml_tensor* dst, const Reader& reader, const UbatchPart& part,
                              std::ptrdiff_t first_token) const noexcept {
  const LayerIndex layer(static_cast<std::int64_t>(reader.layer));
  const ggml_tensor* const q = dst->src[0];
  AttendTask task;
  task.shape = reader.shape;
  task.segments = part.memory->segments(layer);
  task.visible = part.memory->visible(layer);
  task.q_token_stride = floats(q->nb[1]);
  task.q_head_stride = floats(q->nb[2]);
  task.q = static_cast<const float*>(q->data) + first_token * task.q_token_stride;
  task.out_token_stride = floats(dst->nb[2]);  // dst is [head_dim_v, n_heads, n_tokens]
  task.out_head_stride = floats(dst->nb[1]);
  task.out = static_cast<float*>(dst->data) + first_token * task.out_token_stride;
  task.sink_logits =
      dst->src[4] != nullptr ? static_cast<const float*>(dst->src[4]->data) : nullptr;
  task.deterministic = options_.deterministic;
  return task;
}

/// Decoding and small batches of a memory whose index is made. Prefill stays exact, and so does a
/// text of any length that is only read: its rows are kept.
bool GraphHook::reads_index(const AttendTask& task, const UbatchPart& part,
                            LayerIndex layer) const noexcept {
  const MemoryIndex* const index = part.memory->index();
  return index != nullptr && topk_.has_value() && index->ready() && part.want != Logits::kNone &&
         takes_decode(task) && task.visible.front().end >= index->plan().min_tokens &&
         can_read_topk(task, index->layer(layer), index->plan().policy);
}

void GraphHook::count_exact(const AttendTask& task) noexcept {
  if (!takes_decode(task)) return;  // prefill
  const auto row = static_cast<std::int64_t>(row_bytes(task.shape.k_type, task.shape.head_dim_k) +
                                             row_bytes(task.shape.v_type, task.shape.head_dim_v));
  for (const VisibleRows& visible : task.visible) {
    const std::int64_t rows =
        (visible.sink_end + visible.end - visible.begin) * task.shape.n_kv_heads;
    exact_reads_.reads += task.shape.n_heads;
    exact_reads_.certified += task.shape.n_heads;
    exact_reads_.dense += task.shape.n_heads;
    exact_reads_.unindexed += task.shape.n_heads;
    exact_reads_.rows_seen += rows;
    exact_reads_.rows_read += rows;
    exact_reads_.bytes_read += rows * row;
    exact_reads_.bytes_dense += rows * row;
  }
}

ReadStatistics GraphHook::take_read_statistics() noexcept {
  ReadStatistics total = std::exchange(exact_reads_, {});
  if (topk_) total.add(topk_->take_statistics());
  return total;
}

void GraphHook::attend_layer(ggml_tensor* dst, int ith, int nth, void* userdata) noexcept {
  const auto& reader = *static_cast<const Reader*>(userdata);
  GraphHook& hook = *reader.hook;
  const auto start = std::chrono::steady_clock::now();
  if (dst->src[0]->ne[1] != hook.n_tokens_) {
    if (ith == 0) hook.fail(Problem::kShape, dst->name);
    return;
  }
  if (ith == 0) hook.check_before_attention(dst, reader);
  const LayerIndex layer(static_cast<std::int64_t>(reader.layer));
  std::array<AttendTask, kMaxTasks> tasks;  // one for each memory
  std::array<AttendTask, kMaxTasks> exact;  // of them, those that are not read through an index
  std::size_t n_tasks = 0;
  std::size_t n_exact = 0;
  std::ptrdiff_t first = 0;
  for (const UbatchPart& part : hook.parts_) {
    const AttendTask& task = tasks[n_tasks++] = hook.task_of(dst, reader, part, first);
    first += std::ssize(part.tokens);
    const MemoryIndex* const index = part.memory->index();
    if (index != nullptr && ith == 0) part.memory->observe(layer, task);
    if (hook.reads_index(task, part, layer)) {
      topk_attend(task, index->layer(layer), index->plan().policy, *hook.topk_, ith, nth);
      // The next read can not begin to score before this thread joins it.
      if (hook.options_.audit_reads && ith == 0)
        audit_read(task, index->layer(layer), index->plan().policy, *hook.topk_);
      continue;
    }
    if (index != nullptr && ith == 0 && part.want != Logits::kNone) hook.count_exact(task);
    exact[n_exact++] = task;
  }
  if (n_exact > 0) {
    attend(std::span<const AttendTask>(exact.data(), n_exact), hook.workspace_, ith, nth);
  }
  if (ith != 0) return;
  hook.attention_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!hook.observer_) return;
  for (std::size_t i = 0; i < n_tasks; ++i) hook.observer_(layer, tasks[i]);
}

}  // namespace volvelle
