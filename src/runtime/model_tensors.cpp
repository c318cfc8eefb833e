// The engine's rules for tensors. It compares shapes with a formula of its own for each
// architecture; what is checked here is what that formula and the graph do not agree on by
// themselves. Cost: one look at each tensor.
#include "runtime/model_tensors.hpp"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <string_view>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "runtime/engine_keys.hpp"

namespace volvelle {
namespace {

constexpr std::uint32_t kTypeF32 = 0;

// Types that exist in a file but that no product of the engine takes as weights: q8_1, q8_k, i8,
// i16, i32, i64, f64.
constexpr std::uint32_t kNoWeights[] = {9, 15, 24, 25, 26, 27, 28};

class TensorRules {
 public:
  explicit TensorRules(const EngineKeys& keys)
      : keys_(keys),
        n_heads_(keys.values("attention.head_count")),
        n_kv_heads_(keys.values("attention.head_count_kv")),
        dims_k_(keys.head_dims("key_length")),
        dims_v_(keys.head_dims("value_length")) {
    if (n_kv_heads_.empty()) n_kv_heads_ = n_heads_;
  }

  Status check() const {
    std::set<std::string, std::less<>> names;
    for (const GgufTensor& tensor : keys_.file().tensors) {
      names.insert(tensor.name);
      VOLVELLE_RETURN_IF_ERROR(check_type(tensor));
      VOLVELLE_RETURN_IF_ERROR(check_projection(tensor));
    }
    for (std::int64_t layer = 0; layer < keys_.n_layers(); ++layer) {
      VOLVELLE_RETURN_IF_ERROR(check_complete(names, static_cast<std::size_t>(layer)));
    }
    return {};
  }

 private:
  using Names = std::set<std::string, std::less<>>;

  Error bad(const std::string& tensor, const std::string& what) const {
    return Error{ErrorCode::kCorrupt, "model: " + io::quoted_path(keys_.file().path) + ": tensor " +
                                          io::quoted(tensor) + " " + what};
  }

  /// Norms, biases and the like are added and multiplied element by element, in f32 only.
  Status check_type(const GgufTensor& tensor) const {
    const std::optional<GgmlTypeInfo> type = ggml_type_info(tensor.type);
    const std::string found = "has type " + std::string(type ? type->name : "unknown");
    if (std::find(std::begin(kNoWeights), std::end(kNoWeights), tensor.type) !=
        std::end(kNoWeights)) {
      return bad(tensor.name, found + ", expected a type of weights");
    }
    const std::string_view name = tensor.name;
    const bool vector = std::count_if(tensor.shape.begin(), tensor.shape.end(),
                                      [](std::uint64_t n) { return n > 1; }) <= 1;
    const bool by_element = vector || name.find("norm") != std::string_view::npos ||
                            name.ends_with(".bias") || name.ends_with(".scale");
    if (by_element && tensor.type != kTypeF32) return bad(tensor.name, found + ", expected f32");
    return {};
  }

  /// One size for other and one for windowed layers.
  using Sizes = std::vector<std::int64_t>;
  static Sizes times(std::int64_t n, const Sizes& dims) { return {n * dims[0], n * dims[1]}; }
  /// Of a number for all layers, or of one per layer.
  static std::int64_t at(const Sizes& list, std::size_t layer) {
    return list.empty() ? 0 : list[std::min(layer, list.size() - 1)];
  }

  Status require_size(const GgufTensor& tensor, std::size_t dim, const Sizes& sizes) const {
    const auto found = tensor.shape.size() > dim ? static_cast<std::int64_t>(tensor.shape[dim]) : 1;
    if (std::find(sizes.begin(), sizes.end(), found) != sizes.end()) return {};
    return bad(tensor.name, "has " + std::to_string(found) + (dim == 0 ? " columns" : " rows") +
                                ", expected " + std::to_string(sizes.front()) +
                                " by the numbers and sizes of the heads");
  }

  /// Some formulas take a projection's size from the embedding; the graph cuts it into heads all
  /// the same.
  Status check_projection(const GgufTensor& tensor) const {
    std::size_t layer = 0;
    int end = 0;
    if (std::sscanf(tensor.name.c_str(), "blk.%zu.%n", &layer, &end) != 1 || end == 0) return {};
    const std::string_view name = std::string_view(tensor.name).substr(static_cast<size_t>(end));
    const std::int64_t q = at(n_heads_, layer);
    const std::int64_t kv = at(n_kv_heads_, layer);
    if (name == "attn_q.weight") return require_size(tensor, 1, times(q, dims_k_));
    if (name == "attn_k.weight") return require_size(tensor, 1, times(kv, dims_k_));
    if (name == "attn_v.weight") return require_size(tensor, 1, times(kv, dims_v_));
    if (name == "attn_output.weight") return require_size(tensor, 0, times(q, dims_v_));
    if (name != "attn_qkv.weight") return {};
    Sizes sizes;
    for (const std::size_t i : {0, 1}) sizes.push_back((q + kv) * dims_k_[i] + kv * dims_v_[i]);
    return require_size(tensor, 1, sizes);
  }

  /// Some loaders take tensors as optional one by one, which the graph needs together.
  Status check_complete(const Names& names, std::size_t layer) const {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const auto has = [&](const char* name) { return names.contains(block + name); };
    const bool attends = at(n_heads_, layer) > 0 && at(n_kv_heads_, layer) > 0;
    if (attends && !has("attn_qkv.weight") && !has("attn_q.weight") && !has("attn_q_b.weight")) {
      return bad(block + "attn_q.weight", "is missing");
    }
    static constexpr const char* kTogether[][2] = {{"ffn_gate.weight", "ffn_up.weight"},
                                                   {"ffn_up.weight", "ffn_down.weight"},
                                                   {"ffn_down.weight", "ffn_up.weight"},
                                                   {"ffn_gate_exps.weight", "ffn_up_exps.weight"},
                                                   {"ffn_up_exps.weight", "ffn_down_exps.weight"},
                                                   {"ffn_down_exps.weight", "ffn_gate_inp.weight"},
                                                   {"ffn_gate_inp.weight", "ffn_down_exps.weight"}};
    for (const auto& [one, other] : kTogether) {
      if (has(one) && !has(other)) return bad(block + other, "is missing beside " + block + one);
    }
    return {};
  }

  const EngineKeys& keys_;
  Sizes n_heads_;
  Sizes n_kv_heads_;
  Sizes dims_k_;
  Sizes dims_v_;
};

}  // namespace

Status check_for_engine(const GgufFile& file) {
  const EngineKeys keys(file);
  VOLVELLE_RETURN_IF_ERROR(check_engine_metadata(keys));
  return TensorRules(keys).check();
}

}  // namespace volvelle
