// What this version can not serve exactly is refused by name, before the engine sees the file.
//
// The metadata of a model that is served is changed one key at a time; each change must be refused
// with a sentence that names the reason, and the unchanged metadata must not be.
#include <cmath>

#include "runtime/model_metadata.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

struct Refusal {
  const char* key;
  GgufValue value;
  const char* reason;  // must be in the message
};

TEST(Refusal, EveryUnservedKindOfModelByName) {
  const GgufFile served = require(read_gguf(require(find_input(kWired, "models"))));
  require(require_servable(served, require(read_model_info(served))));
  const std::vector<Refusal> refusals = {
      {"llama.attention.sliding_window", std::uint64_t{512}, "sliding-window"},
      {"llama.attention.sliding_window", std::vector<std::uint64_t>{0, 512}, "sliding-window"},
      {"llama.attention.chunk_size", std::uint64_t{8192}, "chunked"},
      {"llama.attention.max_alibi_bias", 8.0, "ALiBi"},
      {"llama.attention.kv_lora_rank", std::uint64_t{512}, "MLA"},
      {"llama.attention.shared_kv_layers", std::uint64_t{1}, "share one KV cache"},
      {"llama.ssm.state_size", std::uint64_t{16}, "recurrent"},
      {"llama.attention.causal", false, "non-causal"},
      {"llama.rope.scaling.type", std::string("longrope"), "LongRoPE"},
      {"split.count", std::uint64_t{2}, "split GGUF"},
  };
  for (const Refusal& refusal : refusals) {
    GgufFile changed = served;
    changed.metadata[refusal.key] = refusal.value;
    const Status status = require_servable(changed, require(read_model_info(changed)));
    ASSERT_FALSE(status.ok()) << refusal.key;
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(status.error().message.find(refusal.reason), std::string::npos)
        << status.error().message;
  }
}

TEST(Refusal, ImpossibleNumbersNameTheKey) {
  const GgufFile served = require(read_gguf(require(find_input(kWired, "models"))));
  const std::vector<std::pair<const char*, GgufValue>> impossible = {
      {"llama.block_count", std::uint64_t{0}},
      {"llama.embedding_length", std::uint64_t{0}},
      {"llama.context_length", std::uint64_t{0}},
      {"llama.attention.head_count", std::uint64_t{0}},
      {"llama.attention.head_count", std::vector<std::uint64_t>{4}},
      {"llama.attention.layer_norm_rms_epsilon", -1.0},
      {"llama.attention.layer_norm_rms_epsilon", std::nan("")},
      {"tokenizer.ggml.bos_token_id", std::uint64_t{99999}},
      {"tokenizer.ggml.tokens", std::uint64_t{5}},
  };
  for (const auto& [key, value] : impossible) {
    GgufFile changed = served;
    changed.metadata[key] = value;
    const Result<ModelInfo> info = read_model_info(changed);
    ASSERT_FALSE(info.ok()) << key;
    EXPECT_NE(info.error().message.find(key), std::string::npos) << info.error().message;
  }
}

TEST(Refusal, QueryHeadsThatFormNoWholeGroups) {
  GgufFile changed = require(read_gguf(require(find_input(kWired, "models"))));
  changed.metadata["llama.attention.head_count_kv"] = std::uint64_t{3};
  EXPECT_EQ(read_model_info(changed).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace volvelle::test
