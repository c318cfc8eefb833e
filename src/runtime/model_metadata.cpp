// GGUF keys to ModelInfo. Keys are "<architecture>.<name>"; counts per layer may be a number or an
// array. Missing keys with a documented default take it; impossible values are errors that name the
// key, since a guessed shape would give wrong answers that look right.
#include "runtime/model_metadata.hpp"

#include <algorithm>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "runtime/fingerprint.hpp"

namespace volvelle {
namespace {

class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  std::optional<std::int64_t> integer(const std::string& name) const {
    return file_.integer(prefix_ + name);
  }
  std::optional<double> number(const std::string& name) const {
    return file_.number(prefix_ + name);
  }
  std::optional<std::string> string(const std::string& name) const {
    return file_.string(prefix_ + name);
  }
  const GgufValue* find(const std::string& name) const {
    const auto entry = file_.metadata.find(prefix_ + name);
    return entry == file_.metadata.end() ? nullptr : &entry->second;
  }
  Error missing(const std::string& name, const std::string& what) const {
    return Error{ErrorCode::kCorrupt,
                 "model: " + file_.path.string() + ": key '" + prefix_ + name + "' " + what};
  }

  Result<std::int64_t> require(const std::string& name, std::int64_t low, std::int64_t high) const {
    const std::optional<std::int64_t> value = integer(name);
    if (!value) return missing(name, "is missing or not an integer");
    if (*value < low || *value > high)
      return missing(name, "is " + std::to_string(*value) + ", expected " + std::to_string(low) +
                               " to " + std::to_string(high));
    return *value;
  }

  /// A number for all layers, or an array with one per layer.
  Result<std::vector<std::int64_t>> per_layer(const std::string& name,
                                              std::int64_t n_layers) const {
    std::vector<std::int64_t> values;
    if (const std::optional<std::int64_t> one = integer(name)) {
      values.assign(static_cast<std::size_t>(n_layers), *one);
    } else if (const GgufValue* value = find(name)) {
      if (const auto* list = std::get_if<std::vector<std::int64_t>>(value)) values = *list;
      if (const auto* list = std::get_if<std::vector<std::uint64_t>>(value))
        values.assign(list->begin(), list->end());
    }
    if (values.size() != static_cast<std::size_t>(n_layers))
      return missing(name, "must be a number or an array of " + std::to_string(n_layers));
    return values;
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

constexpr std::int64_t kMaxCount = 1 << 20;  // far above any real model, far below overflow

/// Sizes of one layer, for checks before the engine sees the file; what the layer really does is
/// learned from the graph. A layer without KV heads has no attention.
Result<LayerShape> read_layer(const Keys& keys, std::int64_t n_embd, std::size_t layer,
                              std::int64_t heads, std::int64_t kv_heads) {
  const auto refuse = [&](const std::string& what) {
    return Error{ErrorCode::kUnsupported, "model: layer " + std::to_string(layer) + " has " + what};
  };
  if (heads < 0 || heads > 4096 || kv_heads < 0)
    return keys.missing("attention.head_count", "is " + std::to_string(heads) + " on " +
                                                    std::to_string(kv_heads) +
                                                    " KV heads in layer " + std::to_string(layer));
  if (heads == 0 || kv_heads == 0) return LayerShape{};
  if (heads % kv_heads != 0) {
    return refuse(std::to_string(heads) + " query heads on " + std::to_string(kv_heads) +
                  " KV heads; only whole groups of query heads are served");
  }
  const std::int64_t dim_k = keys.integer("attention.key_length").value_or(n_embd / heads);
  const std::int64_t dim_v = keys.integer("attention.value_length").value_or(n_embd / heads);
  if (dim_k < 1 || dim_v < 1 || dim_k > kMaxHeadDim || dim_v > kMaxHeadDim) {
    return refuse("head dimensions " + std::to_string(dim_k) + " and " + std::to_string(dim_v) +
                  ", which are not served; at most " + std::to_string(kMaxHeadDim));
  }
  return LayerShape{static_cast<int>(kv_heads), static_cast<int>(dim_k), static_cast<int>(dim_v)};
}

Status read_layers(const Keys& keys, ModelInfo& info) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t n_layers, keys.require("block_count", 1, 4096));
  info.n_layers = static_cast<int>(n_layers);
  VOLVELLE_ASSIGN_OR_RETURN(info.n_embd, keys.require("embedding_length", 1, kMaxCount));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> heads,
                            keys.per_layer("attention.head_count", n_layers));
  std::vector<std::int64_t> kv_heads = heads;
  if (keys.find("attention.head_count_kv") != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(kv_heads, keys.per_layer("attention.head_count_kv", n_layers));
  }
  for (std::size_t i = 0; i < heads.size(); ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(const LayerShape layer,
                              read_layer(keys, info.n_embd, i, heads[i], kv_heads[i]));
    info.layers.push_back(layer);
    info.n_heads = std::max(info.n_heads, static_cast<int>(heads[i]));
  }
  return {};
}

RopeScaling scaling_of(const std::string& name) {
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "yarn") return RopeScaling::kYarn;
  if (name == "longrope") return RopeScaling::kLongRope;
  return RopeScaling::kNone;
}

RopeConfig read_rope(const Keys& keys, const GgufFile& file, const ModelInfo& info) {
  RopeConfig rope;
  rope.rotated_dims = static_cast<int>(
      keys.integer("rope.dimension_count").value_or(info.layers.front().head_dim_k));
  rope.freq_base = keys.number("rope.freq_base").value_or(10000.0);
  rope.scaling = scaling_of(keys.string("rope.scaling.type").value_or("none"));
  rope.scale_factor =
      keys.number("rope.scaling.factor").value_or(keys.number("rope.scale_linear").value_or(1.0));
  rope.original_context = keys.integer("rope.scaling.original_context_length").value_or(0);
  for (const GgufTensor& tensor : file.tensors) {
    if (tensor.name.starts_with("rope_freqs") ||
        tensor.name.find(".rope_freqs") != std::string::npos)
      rope.frequency_factors = true;
    if (tensor.name.find("rope_factors_long") != std::string::npos)
      rope.scaling = RopeScaling::kLongRope;
  }
  return rope;
}

/// The engine trusts the types and lengths of the vocabulary's arrays; a wrong one may abort it.
Status check_vocabulary(const GgufFile& file) {
  const auto find = [&](const char* key) -> const GgufValue* {
    const auto entry = file.metadata.find(key);
    return entry == file.metadata.end() ? nullptr : &entry->second;
  };
  const auto bad = [&](const std::string& key, const std::string& what) {
    return Error{ErrorCode::kCorrupt,
                 "model: " + file.path.string() + ": key '" + key + "' " + what};
  };
  if (!file.string("tokenizer.ggml.model")) return bad("tokenizer.ggml.model", "is missing");
  const GgufValue* const tokens = find("tokenizer.ggml.tokens");
  if (tokens == nullptr) return {};  // a model without a vocabulary of its own; the engine says so
  const auto* const words = std::get_if<std::vector<std::string>>(tokens);
  if (words == nullptr || words->empty()) {
    return bad("tokenizer.ggml.tokens", "must be an array of strings");
  }
  const std::string as_many = " of " + std::to_string(words->size());
  if (const GgufValue* scores = find("tokenizer.ggml.scores")) {
    const auto* const list = std::get_if<std::vector<double>>(scores);
    if (list == nullptr || list->size() != words->size()) {
      return bad("tokenizer.ggml.scores", "must be an array" + as_many + " floats");
    }
  }
  if (const GgufValue* types = find("tokenizer.ggml.token_type")) {
    const auto* const list = std::get_if<std::vector<std::int64_t>>(types);
    const auto* const unsigned_list = std::get_if<std::vector<std::uint64_t>>(types);
    const std::size_t n = list ? list->size() : unsigned_list ? unsigned_list->size() : 0;
    if (n != words->size()) {
      return bad("tokenizer.ggml.token_type", "must be an array" + as_many + " integers");
    }
  }
  for (const char* name : {"bos", "eos"}) {
    const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    const std::optional<std::int64_t> id = file.integer(key);
    if (id && (*id < 0 || *id >= static_cast<std::int64_t>(words->size()))) {
      return bad(key, "is " + std::to_string(*id) + ", not a token" + as_many);
    }
  }
  if (const GgufValue* merges = find("tokenizer.ggml.merges")) {
    if (std::get_if<std::vector<std::string>>(merges) == nullptr) {
      return bad("tokenizer.ggml.merges", "must be an array of strings");
    }
  }
  return {};
}

/// Byte-pair vocabularies are cut into words before they are merged; files converted long ago do
/// not say how, and the engine then takes a rule that fits few models. The text still looks right.
void warn_of_guessed_words(const GgufFile& file, ModelInfo& info) {
  const std::string kind = file.string("tokenizer.ggml.model").value_or("");
  const bool byte_pairs = kind == "gpt2" || kind == "hybriddna" || kind == "whitespace";
  if (!byte_pairs || !file.string("tokenizer.ggml.pre").value_or("").empty()) return;
  info.warnings.push_back(
      "model: " + file.path.string() +
      ": key 'tokenizer.ggml.pre' is missing, so the engine guesses how text is cut into words and "
      "answers may be worse than the model's own; convert the model again");
}

}  // namespace

Result<ModelInfo> read_model_info(const GgufFile& file) {
  ModelInfo info;
  info.path = std::filesystem::absolute(file.path);
  info.file_bytes = file.file_bytes;
  info.name = io::printable(file.string("general.name").value_or(file.path.stem().string()), 200);
  const std::optional<std::string> architecture = file.string("general.architecture");
  if (!architecture) {
    return Error{ErrorCode::kCorrupt,
                 "model: " + file.path.string() + ": key 'general.architecture' is missing"};
  }
  info.architecture = *architecture;
  const Keys keys(file, info.architecture);
  VOLVELLE_RETURN_IF_ERROR(check_vocabulary(file));
  warn_of_guessed_words(file, info);
  VOLVELLE_RETURN_IF_ERROR(read_layers(keys, info));
  for (const char* name : {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"}) {
    const std::optional<double> epsilon = keys.number(name);
    if (epsilon && !(*epsilon >= 0.0 && *epsilon < 1.0)) {
      return keys.missing(name, "must be a number from 0 to 1");
    }
  }
  VOLVELLE_ASSIGN_OR_RETURN(info.context_length,
                            keys.require("context_length", 1, std::int64_t{1} << 31));
  info.rope = read_rope(keys, file, info);
  info.chat_template = file.string("tokenizer.chat_template").value_or("");
  info.tokenizer_hash =
      hash_metadata(file, [](const std::string& key) { return key.starts_with("tokenizer."); });
  return info;
}

Status require_servable(const GgufFile& file, const ModelInfo& info) {
  const Keys keys(file, info.architecture);
  const auto refuse = [&](const std::string& what) {
    return Error{ErrorCode::kUnsupported, "model: " + info.name + " (" + info.architecture +
                                              ") has " + what +
                                              ", which this version does not serve"};
  };
  const auto positive = [&](const char* name) {
    return keys.number(name).value_or(0) > 0 || (keys.find(name) != nullptr && !keys.number(name));
  };
  if (file.integer("split.count").value_or(0) > 1) {
    return refuse("its weights in several files (a split GGUF; merge them with llama-gguf-split)");
  }
  if (positive("attention.chunk_size")) return refuse("chunked attention layers");
  if (positive("attention.max_alibi_bias")) return refuse("ALiBi position biases");
  if (positive("attention.kv_lora_rank")) return refuse("multi-head latent attention (MLA)");
  if (positive("ssm.state_size") || positive("wkv.head_size") ||
      keys.find("attention.recurrent_layers") != nullptr) {
    return refuse("recurrent layers");
  }
  if (const GgufValue* causal = keys.find("attention.causal");
      causal != nullptr && std::get_if<bool>(causal) != nullptr && !std::get<bool>(*causal)) {
    return refuse("non-causal attention");
  }
  if (info.rope.scaling == RopeScaling::kLongRope) {
    return refuse(
        "LongRoPE scaling (the engine would pick its frequencies by the size of its own context)");
  }
  return {};
}

}  // namespace volvelle
