// Loading: our own look at the file first, then the engine, then a check that the two agree. The
// engine may abort the process on a bad file, so everything that can be checked is checked before.
// Weights stay on the host; layers on a GPU are untested.
#include "volvelle/runtime/model.hpp"

#include <algorithm>

#include "base/result_macros.hpp"
#include "runtime/fingerprint.hpp"
#include "runtime/graph_probe.hpp"
#include "runtime/model_impl.hpp"
#include "runtime/model_kinds.hpp"
#include "runtime/model_metadata.hpp"
#include "runtime/model_tensors.hpp"
#include "runtime/tokenizer_impl.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle {
namespace {

bool keep_loading(float, void* cancel) {
  return !static_cast<const CancelToken*>(cancel)->cancelled();
}

/// The engine may read metadata differently than we do; every size that the hook relies on must
/// agree.
Status require_agreement(const llama_model* model, const ModelInfo& info) {
  const auto check = [&](const char* what, std::int64_t ours, std::int64_t theirs) -> Status {
    if (ours == theirs) return {};
    return Error{ErrorCode::kUnsupported, "model: " + info.name + ": " + what + " is " +
                                              std::to_string(ours) + " by its metadata and " +
                                              std::to_string(theirs) + " by the engine"};
  };
  VOLVELLE_RETURN_IF_ERROR(check("layer count", info.n_layers, llama_model_n_layer(model)));
  VOLVELLE_RETURN_IF_ERROR(check("embedding length", info.n_embd, llama_model_n_embd(model)));
  VOLVELLE_RETURN_IF_ERROR(
      check("context length", info.context_length, llama_model_n_ctx_train(model)));
  const auto refuse = [&](const std::string& what) {
    return Error{ErrorCode::kUnsupported, "model: " + info.name + " (" + info.architecture + ") " +
                                              what + ", which this version does not serve"};
  };
  if (llama_model_is_recurrent(model)) return refuse("has recurrent layers only");
  if (llama_model_is_hybrid(model)) return refuse("has recurrent layers beside attention");
  if (llama_model_is_diffusion(model)) return refuse("is a diffusion model");
  if (llama_model_has_encoder(model) || !llama_model_has_decoder(model))
    return refuse("is no plain decoder, it has an encoder");
  return {};
}

/// The graph's own view of the layers takes the place of the metadata's.
void take_layers(const std::vector<ProbedLayer>& probed, Model::Impl& impl) {
  ModelInfo& info = impl.info;
  info.layers.clear();
  info.layer_readers.clear();
  info.n_heads = 0;
  for (const ProbedLayer& layer : probed) {
    info.layers.push_back(layer.shape);
    info.layer_readers.push_back(layer.readers);
    info.n_heads = std::max(info.n_heads, layer.n_heads);
    impl.queries.push_back(layer.queries);
  }
}

RopeLayout layout_of(llama_rope_type type) {
  switch (type) {
    case LLAMA_ROPE_TYPE_NONE:
      return RopeLayout::kNone;
    case LLAMA_ROPE_TYPE_NORM:
      return RopeLayout::kAdjacentPairs;
    case LLAMA_ROPE_TYPE_NEOX:
      return RopeLayout::kHalfSplit;
    default:
      return RopeLayout::kOther;
  }
}

}  // namespace

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Result<Model> Model::load(const std::filesystem::path& path, const ModelOptions& options) {
  VOLVELLE_RETURN_IF_ERROR(select_isa());
  VOLVELLE_ASSIGN_OR_RETURN(const GgufFile file, read_gguf(path));
  auto impl = std::make_unique<Impl>();
  VOLVELLE_RETURN_IF_ERROR(require_served_kind(file));
  VOLVELLE_ASSIGN_OR_RETURN(impl->info, read_model_info(file));
  VOLVELLE_RETURN_IF_ERROR(require_servable(file, impl->info));
  VOLVELLE_RETURN_IF_ERROR(check_for_engine(file));
  for (const std::string& warning : impl->info.warnings) {
    if (options.log) options.log(LogLevel::kWarning, warning);
  }
  VOLVELLE_ASSIGN_OR_RETURN(impl->info.fingerprint, fingerprint_of(file, options.cancel));

  engine::initialize();
  engine::set_log_sink(options.log);
  engine::take_errors();  // of earlier calls
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.progress_callback = keep_loading;
  CancelToken cancel = options.cancel;
  params.progress_callback_user_data = &cancel;
  impl->engine_model.reset(llama_model_load_from_file(path.c_str(), params));
  if (!impl->engine_model) {
    if (cancel.cancelled()) return Error{ErrorCode::kCancelled, "model: interrupted"};
    return Error{ErrorCode::kEngine, "model: the engine could not load " + path.string() + ": " +
                                         engine::take_errors()};
  }
  VOLVELLE_RETURN_IF_ERROR(require_agreement(impl->engine_model.get(), impl->info));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<ProbedLayer> layers,
                            probe_layers(impl->engine_model.get()));
  take_layers(layers, *impl);
  const llama_vocab* const vocab = llama_model_get_vocab(impl->engine_model.get());
  impl->info.n_vocab = llama_vocab_n_tokens(vocab);
  impl->info.rope.layout = layout_of(llama_model_rope_type(impl->engine_model.get()));
  impl->tokenizer = std::make_unique<Tokenizer>(std::make_unique<Tokenizer::Impl>(vocab));
  return Model(std::move(impl));
}

const ModelInfo& Model::info() const noexcept { return impl_->info; }
const Tokenizer& Model::tokenizer() const noexcept { return *impl_->tokenizer; }

std::string engine_version() {
  return std::string("llama.cpp ") + llama_version() + " (ggml " + ggml_version() + ", " +
         ggml_commit() + ")";
}

}  // namespace volvelle
