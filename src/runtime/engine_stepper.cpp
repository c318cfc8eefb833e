// A Stepper on llama.cpp's own cache: the reference that our memory is compared with. It shares no
// code of ours in attention or memory; its context is as long as the text. Captured rows are read
// from the sources of the nodes that store them, after the engine computed them.
#include <algorithm>

#include "base/result_macros.hpp"
#include "runtime/engine.hpp"
#include "runtime/graph_nodes.hpp"
#include "runtime/logit_rows.hpp"
#include "runtime/model_impl.hpp"
#include "volvelle/runtime/stepper.hpp"

namespace volvelle {
namespace {

ggml_type engine_type(ElementType type) noexcept {
  switch (type) {
    case ElementType::kF32:
      return GGML_TYPE_F32;
    case ElementType::kF16:
      return GGML_TYPE_F16;
    case ElementType::kBF16:
      return GGML_TYPE_BF16;
    case ElementType::kQ8_0:
      return GGML_TYPE_Q8_0;
    case ElementType::kQ4_0:
      break;
  }
  return GGML_TYPE_Q4_0;
}

class EngineStepper final : public Stepper {
 public:
  EngineStepper(const Model& model, EngineStepperOptions options)
      : model_(model),
        options_(std::move(options)),
        batch_(options_.n_ubatch),
        logits_(model.info().n_vocab) {}

  Status open() {
    engine::ContextRequest request;
    request.n_ctx = options_.n_ctx;
    request.n_ubatch = options_.n_ubatch;
    request.n_threads = engine::thread_count(options_.n_threads);
    request.n_threads_batch =
        options_.n_threads_batch > 0 ? options_.n_threads_batch : request.n_threads;
    request.flash_attention = options_.flash_attention;
    request.kv_type = engine_type(options_.kv_type);
    if (options_.capture) {
      request.callback = &EngineStepper::on_node;
      request.callback_data = this;
    }
    context_ = engine::make_context(model_.impl().engine_model.get(), request);
    if (context_) return {};
    return Error{ErrorCode::kEngine, "engine: no context of " + std::to_string(options_.n_ctx) +
                                         " tokens: " + engine::take_errors()};
  }

  Status step(std::span<const TokenId> tokens, Logits want) override {
    const auto n = static_cast<std::int64_t>(tokens.size());
    logits_.clear();
    if (length_ + n > options_.n_ctx) {
      return Error{ErrorCode::kContextExceeded, "engine: " + std::to_string(length_ + n) +
                                                    " tokens do not fit into a context of " +
                                                    std::to_string(options_.n_ctx)};
    }
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t size = std::min<std::int64_t>(options_.n_ubatch, n - done);
      const auto wanted = [&](std::int64_t i) {
        return want == Logits::kAll || (want == Logits::kLast && done + i + 1 == n);
      };
      batch_.clear();
      for (std::int64_t i = 0; i < size; ++i)
        batch_.add(tokens[static_cast<std::size_t>(done + i)], length_ + i, 0, wanted(i));
      if (const int rc = llama_decode(context_.get(), batch_.get()); rc != 0) {
        return Error{ErrorCode::kEngine, "engine: decode failed with code " + std::to_string(rc) +
                                             ": " + engine::take_errors()};
      }
      for (std::int64_t i = 0; i < size; ++i) {
        if (wanted(i)) logits_.append(context_.get(), static_cast<int>(i));
      }
      length_ += size;
      done += size;
    }
    return {};
  }

  std::span<const float> logits(std::int64_t i) const override { return logits_.row(i); }

  std::int64_t length() const override { return length_; }

  Status truncate(std::int64_t length) override {
    if (length < 0 || length > length_)
      return Error{ErrorCode::kInvalidArgument, "engine: can not truncate to " +
                                                    std::to_string(length) + " of " +
                                                    std::to_string(length_) + " tokens"};
    llama_memory_seq_rm(llama_get_memory(context_.get()), 0, static_cast<llama_pos>(length), -1);
    length_ = length;
    return {};
  }

 private:
  /// Asks for the nodes that store rows, and reads their sources once they are computed.
  static bool on_node(ggml_tensor* node, bool ask, void* self) {
    auto& stepper = *static_cast<EngineStepper*>(self);
    if (node->op != GGML_OP_SET_ROWS) return !ask;
    const std::int64_t key_layer = cache_layer(node, kKeyCachePrefix);
    const std::int64_t value_layer = cache_layer(node, kValueCachePrefix);
    if (key_layer < 0 && value_layer < 0) return !ask;
    if (ask) return true;
    stepper.report(node->src[0],
                   key_layer >= 0 ? CapturedRows::Kind::kKey : CapturedRows::Kind::kValue,
                   std::max(key_layer, value_layer));
    return true;
  }

  void report(const ggml_tensor* rows, CapturedRows::Kind kind, std::int64_t layer) const {
    const LayerShape& shape = model_.info().layers.at(static_cast<std::size_t>(layer));
    const std::int64_t head_dim =
        kind == CapturedRows::Kind::kKey ? shape.head_dim_k : shape.head_dim_v;
    options_.capture(
        CapturedRows{.kind = kind,
                     .layer = LayerIndex(layer),
                     .first_position = Position(length_),
                     .n_tokens = rows->ne[1],
                     .n_heads = shape.n_kv_heads,
                     .head_dim = head_dim,
                     .data = static_cast<const float*>(rows->data),
                     .token_stride = static_cast<std::ptrdiff_t>(rows->nb[1] / sizeof(float)),
                     .head_stride = static_cast<std::ptrdiff_t>(head_dim)});
  }

  const Model& model_;
  EngineStepperOptions options_;
  engine::ContextPtr context_;
  engine::Batch batch_;
  std::int64_t length_ = 0;
  LogitRows logits_;
};

}  // namespace

Result<std::unique_ptr<Stepper>> make_engine_stepper(const Model& model,
                                                     const EngineStepperOptions& options) {
  if (options.n_ubatch < 1 || options.n_ctx < 1)
    return Error{ErrorCode::kInvalidArgument,
                 "engine: context and ubatch sizes must be at least 1"};
  if (options.capture && !options.flash_attention) {
    return Error{ErrorCode::kUnsupported,
                 "engine: rows can be captured with flash attention only (the other path stores "
                 "values transposed)"};
  }
  auto stepper = std::make_unique<EngineStepper>(model, options);
  VOLVELLE_RETURN_IF_ERROR(stepper->open());
  return std::unique_ptr<Stepper>(std::move(stepper));
}

}  // namespace volvelle
