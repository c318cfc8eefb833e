// The engine's rules for metadata: limits of its arrays, and what its loader, graphs and caches
// assert. Each rule was found by a damaged file that ended the process. Cost: a few look-ups, and
// one hash table of the vocabulary.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "runtime/engine_keys.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kMaxLayers = 512;
constexpr std::int64_t kMaxExperts = 1024;

// Values may be narrower than keys; everywhere else the graph asserts that they are not.
constexpr std::string_view kUnequalHeads[] = {"plamo3", "mimo2", "step35", "plm", "minicpm3"};

// The graph asserts that all dimensions of a head are rotated.
constexpr std::string_view kWholeHeadsRotate[] = {
    "apertus",     "arcee",      "arctic",        "baichuan",      "chameleon",    "codeshell",
    "cogvlm",      "cohere2moe", "dbrx",          "deci",          "deepseek",     "dots1",
    "ernie4_5",    "falcon",     "ernie4_5-moe",  "exaone",        "exaone-moe",   "exaone4",
    "granite",     "granitemoe", "granite_swa",   "graniteswitch", "grok",         "grovemoe",
    "hunyuan-moe", "hunyuan_vl", "hunyuan-dense", "hy_v3",         "internlm2",    "jais2",
    "llama",       "llama4",     "maincoder",     "mellum",        "minicpm",      "mistral3",
    "olmo",        "olmo2",      "olmoe",         "orion",         "paddleocr",    "pangu-embedded",
    "plamo",       "pockettts",  "qwen2",         "qwen2moe",      "qwen2vl",      "qwen3",
    "qwen3moe",    "qwen3vl",    "qwen3vlmoe",    "seed_oss",      "smallthinker", "smollm3",
    "starcoder2",  "talkie",     "xverse"};

/// How the engine spreads windows over layers where the file has no pattern of its own.
struct WindowRule {
  std::string_view architecture;
  std::int64_t period;  // one layer of so many has no window; 0: the file must have a pattern
  bool dense_first = false;
  bool always = true;  // else only if the file has a sliding window
};
constexpr WindowRule kWindowRules[] = {
    {"gemma2", 2},
    {"gemma3", 6, false, false},
    {"gemma3n", 5},
    {"gemma4", 0},
    {"cohere2", 4},
    {"cohere2moe", 4, true},
    {"exaone-moe", 4},
    {"gpt-oss", 2},
    {"afmoe", 4, false, false},
    {"laguna", 4, true, false},
    {"mellum", 4, false, false},
    {"muse-glimmer", 4},
    {"olmo2", 4, false, false},
    {"plamo3", 8, false, false},
    {"smallthinker", 4, true, false},
    {"granite_swa", 0},
    {"maple", 0},
    {"mimo2", 0},
    {"spark2_5", 0},
    {"step35", 0},
};

const WindowRule* window_rule(std::string_view architecture) {
  const auto* const found =
      std::find_if(std::begin(kWindowRules), std::end(kWindowRules),
                   [&](const WindowRule& rule) { return rule.architecture == architecture; });
  return found == std::end(kWindowRules) ? nullptr : found;
}

template <class List>
bool contains(const List& list, std::string_view value) {
  return std::find(std::begin(list), std::end(list), value) != std::end(list);
}

Status check_counts(const EngineKeys& keys) {
  const std::int64_t n_layers = keys.integer("block_count").value_or(0);
  if (n_layers < 1 || n_layers > kMaxLayers) {
    return keys.bad("block_count", "is " + std::to_string(n_layers) + ", expected 1 to " +
                                       std::to_string(kMaxLayers));
  }
  const std::int64_t n_extra = keys.integer("nextn_predict_layers").value_or(0);
  if (n_extra >= 0 && n_extra < n_layers) return {};
  return keys.bad("nextn_predict_layers",
                  "is " + std::to_string(n_extra) + " of " + std::to_string(n_layers) + " layers");
}

Status check_experts(const EngineKeys& keys) {
  const std::int64_t n = keys.integer("expert_count").value_or(0);
  const std::int64_t used = keys.largest("expert_used_count");
  const std::int64_t groups = keys.integer("expert_group_count").value_or(0);
  const std::int64_t groups_used = keys.integer("expert_group_used_count").value_or(0);
  const std::string of_n = " with " + std::to_string(n) + " experts";
  if (n < 0 || n > kMaxExperts) {
    return keys.bad("expert_count",
                    "is " + std::to_string(n) + ", expected 0 to " + std::to_string(kMaxExperts));
  }
  if (used < 0 || used > n || (n > 0 && used == 0)) {
    return keys.bad("expert_used_count", "is " + std::to_string(used) + of_n);
  }
  if (groups < 0 || (groups > 0 && groups >= n) || (groups > 1 && n % groups != 0)) {
    return keys.bad("expert_group_count", "is " + std::to_string(groups) + of_n);
  }
  if (groups > 1 && (groups_used < 1 || groups_used >= groups)) {
    return keys.bad("expert_group_used_count", "is " + std::to_string(groups_used) + " of " +
                                                   std::to_string(groups) + " groups");
  }
  return {};
}

/// The engine's two caches, for windowed and for other layers, must both have a layer.
Status check_windows(const EngineKeys& keys) {
  const WindowRule* const rule = window_rule(keys.architecture());
  if (rule == nullptr) return {};
  if (!rule->always && keys.integer("attention.sliding_window").value_or(0) <= 0) return {};
  std::int64_t n_windowed = 0;
  for (std::int64_t layer = 0; layer < keys.n_layers(); ++layer) {
    n_windowed += keys.windowed(layer) ? 1 : 0;
  }
  if (n_windowed > 0 && n_windowed < keys.n_layers()) return {};
  return keys.bad("attention.sliding_window_pattern",
                  "gives " + std::to_string(n_windowed) + " of " + std::to_string(keys.n_layers()) +
                      " layers a sliding window; the engine runs this architecture only with "
                      "layers of both kinds");
}

Status check_head_counts(const EngineKeys& keys) {
  if (keys.architecture() == "deci") return {};  // some of its layers have no attention
  for (const char* name : {"attention.head_count", "attention.head_count_kv"}) {
    for (const std::int64_t n : keys.values(name)) {
      if (n < 1) return keys.bad(name, "is " + std::to_string(n) + ", expected at least 1");
    }
  }
  return {};
}

Status check_head_dims(const EngineKeys& keys) {
  const std::vector<std::int64_t> dims_k = keys.head_dims("key_length");
  const std::vector<std::int64_t> dims_v = keys.head_dims("value_length");
  if (dims_k == dims_v || contains(kUnequalHeads, keys.architecture())) return {};
  return keys.bad("attention.value_length",
                  "makes values of " + std::to_string(dims_v[0]) + " dimensions (" +
                      std::to_string(dims_v[1]) + " in windowed layers) beside keys of " +
                      std::to_string(dims_k[0]) + " (" + std::to_string(dims_k[1]) +
                      "), which the engine does not compute for this architecture");
}

/// Layers from `first` on read the rows of the last windowed and the last other layer before them.
Status check_shared_rows(const EngineKeys& keys) {
  std::int64_t first = 20;  // fixed for gemma3n
  if (keys.architecture() == "gemma4") {
    first = keys.n_layers() - keys.integer("attention.shared_kv_layers").value_or(0);
  } else if (keys.architecture() != "gemma3n") {
    return {};
  }
  bool fits = first >= 2 && first <= std::max<std::int64_t>(20, keys.n_layers());
  for (std::int64_t layer = first; fits && layer < keys.n_layers(); ++layer) {
    const bool windowed = keys.windowed(layer);
    fits = keys.windowed(first - (windowed ? 2 : 1)) == windowed;
  }
  if (fits) return {};
  return keys.bad("attention.shared_kv_layers",
                  "leaves " + std::to_string(first) +
                      " layers with rows of their own, of which the last two must be one with a "
                      "sliding window and one without");
}

Status check_rotated_dims(const EngineKeys& keys) {
  const std::vector<std::int64_t> dims = keys.head_dims("key_length");
  const std::int64_t full = keys.integer("rope.dimension_count").value_or(dims[0]);
  const std::int64_t rotated[] = {full, keys.integer("rope.dimension_count_swa").value_or(full)};
  for (const std::size_t i : {0, 1}) {
    const std::string name = i == 0 ? "rope.dimension_count" : "rope.dimension_count_swa";
    if (rotated[i] < 2 || rotated[i] > dims[i] || rotated[i] % 2 != 0) {
      return keys.bad(name, "is " + std::to_string(rotated[i]) +
                                ", expected an even number from 2 to " + std::to_string(dims[i]) +
                                ", the dimensions of a head");
    }
    if (rotated[i] != dims[i] && contains(kWholeHeadsRotate, keys.architecture())) {
      return keys.bad(name, "is " + std::to_string(rotated[i]) +
                                ", but the engine rotates whole heads of this architecture, here "
                                "of " +
                                std::to_string(dims[i]) + " dimensions");
    }
  }
  return {};
}

Status check_rope(const EngineKeys& keys) {
  for (const char* name : {"rope.freq_base", "rope.freq_base_swa"}) {
    const std::optional<double> base = keys.number(name);
    if (base && !(std::isfinite(*base) && *base > 0)) {
      return keys.bad(name, "is " + std::to_string(*base) + ", expected a positive number");
    }
  }
  static constexpr std::string_view kScalings[] = {"none", "linear", "yarn", "longrope"};
  const GgufValue* const value = keys.find("rope.scaling.type");
  const auto* const scaling = value != nullptr ? std::get_if<std::string>(value) : nullptr;
  if (scaling != nullptr && !contains(kScalings, *scaling)) {
    return keys.bad("rope.scaling.type",
                    "is " + io::quoted(*scaling) + ", expected none, linear, yarn or longrope");
  }
  return check_rotated_dims(keys);
}

Status check_vocabulary(const EngineKeys& keys) {
  const GgufFile& file = keys.file();
  const std::string tokenizer = file.string("tokenizer.ggml.model").value_or("");
  if (tokenizer == "none" || tokenizer == "no_vocab") {
    return keys.bad_key("tokenizer.ggml.model", "is " + io::quoted(tokenizer) +
                                                    "; without a vocabulary no text can be read");
  }
  const auto found = file.metadata.find("tokenizer.ggml.tokens");
  if (found == file.metadata.end()) return {};
  const auto* const words = std::get_if<std::vector<std::string>>(&found->second);
  if (words == nullptr) return {};
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < words->size(); ++i) {
    const std::string& word = (*words)[i];
    // The engine gives an empty word this name.
    if (!seen.insert(word.empty() ? "[EMPTY_" + std::to_string(i) + "]" : word).second) {
      return keys.bad_key("tokenizer.ggml.tokens", "holds " + io::quoted(word) + " twice");
    }
  }
  return {};
}

}  // namespace

const GgufValue* EngineKeys::find(const std::string& name) const {
  const auto found = file_.metadata.find(architecture_ + "." + name);
  return found == file_.metadata.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> EngineKeys::integer(const std::string& name) const {
  return file_.integer(architecture_ + "." + name);
}

std::optional<double> EngineKeys::number(const std::string& name) const {
  return file_.number(architecture_ + "." + name);
}

std::vector<std::int64_t> EngineKeys::values(const std::string& name) const {
  if (const std::optional<std::int64_t> one = integer(name)) return {*one};
  const GgufValue* const value = find(name);
  if (value == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(value)) return *list;
  const auto* const list = std::get_if<std::vector<std::uint64_t>>(value);
  return list != nullptr ? std::vector<std::int64_t>(list->begin(), list->end())
                         : std::vector<std::int64_t>{};
}

std::int64_t EngineKeys::largest(const std::string& name) const {
  const std::vector<std::int64_t> all = values(name);
  return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
}

std::int64_t EngineKeys::n_layers() const {
  return integer("block_count").value_or(0) - integer("nextn_predict_layers").value_or(0);
}

std::vector<std::int64_t> EngineKeys::head_dims(const std::string& name) const {
  const std::vector<std::int64_t> n_heads = values("attention.head_count");
  const std::int64_t first = n_heads.empty() ? 0 : n_heads.front();
  const std::int64_t usual = first > 0 ? integer("embedding_length").value_or(0) / first : 0;
  const std::int64_t full = integer("attention." + name).value_or(usual);
  return {full, integer("attention." + name + "_swa").value_or(full)};
}

bool EngineKeys::windowed(std::int64_t layer) const {
  const GgufValue* const value = find("attention.sliding_window_pattern");
  if (value != nullptr) {
    if (const auto* const list = std::get_if<std::vector<bool>>(value)) {
      return layer < std::ssize(*list) && (*list)[static_cast<std::size_t>(layer)];
    }
  }
  const std::vector<std::int64_t> pattern = values("attention.sliding_window_pattern");
  if (pattern.size() > 1) {
    return layer < std::ssize(pattern) && pattern[static_cast<std::size_t>(layer)] != 0;
  }
  const WindowRule* const rule = window_rule(architecture_);
  if (rule == nullptr) return false;
  const std::int64_t period = pattern.empty() ? rule->period : pattern.front();
  if (period <= 0) return true;
  return rule->dense_first ? layer % period != 0 : layer % period < period - 1;
}

Error EngineKeys::bad(const std::string& name, const std::string& what) const {
  return bad_key(architecture_ + "." + name, what);
}

Error EngineKeys::bad_key(const std::string& full_name, const std::string& what) const {
  return Error{ErrorCode::kCorrupt, "model: " + io::quoted_path(file_.path) + ": key " +
                                        io::quoted(full_name) + " " + what};
}

Status check_engine_metadata(const EngineKeys& keys) {
  VOLVELLE_RETURN_IF_ERROR(check_counts(keys));
  VOLVELLE_RETURN_IF_ERROR(check_experts(keys));
  VOLVELLE_RETURN_IF_ERROR(check_head_counts(keys));
  VOLVELLE_RETURN_IF_ERROR(check_head_dims(keys));
  VOLVELLE_RETURN_IF_ERROR(check_windows(keys));
  VOLVELLE_RETURN_IF_ERROR(check_shared_rows(keys));
  VOLVELLE_RETURN_IF_ERROR(check_rope(keys));
  return check_vocabulary(keys);
}

}  // namespace volvelle
