// One table: architecture, and what it is or has. Names are those of the engine. An architecture
// that is not in it goes on to the other gates: the rest of the metadata, the engine's own view,
// the probe of its graph, and the check of every graph that is run.
#include "runtime/model_kinds.hpp"

#include "io/message.hpp"

namespace volvelle {
namespace {

constexpr const char* kRecurrent = "recurrent layers";
constexpr const char* kHybrid = "recurrent layers beside its attention layers (a hybrid model)";
constexpr const char* kEncoder = "an encoder, whose tokens see those that come after them";
constexpr const char* kDiffusion =
    "diffusion decoding, whose tokens see those that come after them";
constexpr const char* kIndexed = "sparse attention with an index of its own";
constexpr const char* kAlibi = "ALiBi position biases";
constexpr const char* kHelper = "no language model of its own (a draft for another model)";
constexpr const char* kNoText = "no text to remember (a vision or audio model)";

constexpr std::size_t kMaxName = 64;

struct RefusedKind {
  std::string_view architecture;
  const char* what;
};
constexpr RefusedKind kRefused[] = {
    {"mamba", kRecurrent},
    {"mamba2", kRecurrent},
    {"rwkv6", kRecurrent},
    {"rwkv6qwen2", kRecurrent},
    {"rwkv7", kRecurrent},
    {"arwkv7", kRecurrent},
    {"jamba", kHybrid},
    {"falcon-h1", kHybrid},
    {"plamo2", kHybrid},
    {"granitehybrid", kHybrid},
    {"lfm2", kHybrid},
    {"lfm2moe", kHybrid},
    {"nemotron_h", kHybrid},
    {"nemotron_h_moe", kHybrid},
    {"qwen3next", kHybrid},
    {"qwen35", kHybrid},
    {"qwen35moe", kHybrid},
    {"qwen4exp", kHybrid},
    {"kimi-linear", kHybrid},
    {"kimi-k3", kHybrid},
    {"bailingmoe3", kHybrid},
    {"glm5-next", kHybrid},
    {"deepseek4", kHybrid},
    {"minimax-01", kHybrid},
    {"bert", kEncoder},
    {"modern-bert", kEncoder},
    {"nomic-bert", kEncoder},
    {"nomic-bert-moe", kEncoder},
    {"neo-bert", kEncoder},
    {"jina-bert-v2", kEncoder},
    {"jina-bert-v3", kEncoder},
    {"eurobert", kEncoder},
    {"gemma-embedding", kEncoder},
    {"llama-embed", kEncoder},
    {"t5", kEncoder},
    {"t5encoder", kEncoder},
    {"dream", kDiffusion},
    {"llada", kDiffusion},
    {"llada-moe", kDiffusion},
    {"rnd1", kDiffusion},
    {"deepseek32", kIndexed},
    {"glm-dsa", kIndexed},
    {"dots3note", kIndexed},
    {"hy_v4", kIndexed},
    {"minimax-m3", kIndexed},
    {"bloom", kAlibi},
    {"refact", kAlibi},
    {"eagle3", kHelper},
    {"dflash", kHelper},
    {"gemma4-assistant", kHelper},
    {"clip", kNoText},
    {"wavtokenizer-dec", kNoText},
};

}  // namespace

Status require_served_kind(const GgufFile& file) {
  const std::string architecture = file.string("general.architecture").value_or("");
  const auto refuse = [&](const char* what) {
    return Error{ErrorCode::kUnsupported,
                 "model: " + io::quoted(file.string("general.name").value_or("")) + " (" +
                     architecture + ") has " + what + ", which this version does not serve"};
  };
  if (architecture.empty() || architecture != io::printable(architecture, kMaxName)) {
    return Error{ErrorCode::kCorrupt,
                 "model: " + io::quoted_path(file.path) + ": key 'general.architecture' is " +
                     io::quoted(architecture) + ", no name of an architecture"};
  }
  for (const RefusedKind& kind : kRefused) {
    if (kind.architecture == architecture) return refuse(kind.what);
  }
  // The engine cuts this one's attention into chunks unless the file says that there is no window.
  if (architecture == "llama4" && file.integer("llama4.attention.sliding_window") != 0) {
    return refuse("chunked attention layers");
  }
  return {};
}

}  // namespace volvelle
