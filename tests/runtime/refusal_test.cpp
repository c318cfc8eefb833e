// What this version can not serve exactly is refused by name, before the engine sees the file.
//
// Tiny models of each such kind, which the engine itself does run, must be refused with a sentence
// that names the reason; and so must the metadata of a model that is served, changed one key at a
// time, while the unchanged metadata must not be.
#include <cmath>
#include <functional>

#include "runtime/model_metadata.hpp"
#include "runtime/model_tensors.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

struct Refusal {
  const char* key;
  GgufValue value;
  const char* reason;  // must be in the message
};

TEST(Refusal, TinyModelsOfEveryUnservedKind) {
  const std::vector<std::pair<const char*, const char*>> models = {
      {"mpt", "ALiBi"},
      {"bloom", "ALiBi"},
      {"deepseek2", "multi-head latent attention (MLA)"},
      {"bert", "an encoder"},
      {"mamba", "recurrent layers"},
      {"lfm2", "a hybrid model"},
      {"llada", "diffusion"},
      {"llama4", "chunked attention"},
      {"phi3-longrope", "LongRoPE"},
      {"split-00001-of-00002", "split GGUF"},
      {"split-00002-of-00002", "split GGUF"},
  };
  for (const auto& [name, reason] : models) {
    const auto path = require(find_input("tiny/" + std::string(name) + ".gguf", "models"));
    const Result<Model> model = Model::load(path, {});
    ASSERT_FALSE(model.ok()) << name;
    EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(model.error().message.find(reason), std::string::npos) << model.error().message;
    EXPECT_NE(model.error().message.find("this version does not serve"), std::string::npos)
        << model.error().message;
  }
}

TEST(Refusal, EveryUnservedKindOfMetadataByName) {
  const GgufFile served = require(read_gguf(require(find_input(kWired, "models"))));
  require(require_servable(served, require(read_model_info(served))));
  const std::vector<Refusal> refusals = {
      {"llama.attention.chunk_size", std::uint64_t{8192}, "chunked"},
      {"llama.attention.max_alibi_bias", 8.0, "ALiBi"},
      {"llama.attention.kv_lora_rank", std::uint64_t{512}, "MLA"},
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
      {"llama.attention.head_count", std::uint64_t{1} << 40},
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

TEST(Refusal, NumbersThatTheEngineWouldAbortOn) {
  const GgufFile served = require(read_gguf(require(find_input(kWired, "models"))));
  require(check_for_engine(served));
  const std::vector<std::pair<const char*, GgufValue>> impossible = {
      {"llama.block_count", std::uint64_t{513}},
      {"llama.attention.head_count", std::uint64_t{0}},
      {"llama.attention.head_count_kv", std::uint64_t{0}},
      {"llama.attention.value_length", std::uint64_t{32}},
      {"llama.nextn_predict_layers", std::uint64_t{2}},
      {"llama.expert_count", std::uint64_t{2000}},
      {"llama.expert_used_count", std::vector<std::uint64_t>{0, 2}},
      {"llama.expert_group_count", std::uint64_t{2}},
      {"llama.rope.dimension_count", std::uint64_t{63}},
      {"llama.rope.dimension_count", std::uint64_t{32}},
      {"llama.rope.dimension_count_swa", std::uint64_t{128}},
      {"llama.rope.freq_base", INFINITY},
      {"llama.rope.scaling.type", std::string("dynamic")},
      {"tokenizer.ggml.model", std::string("no_vocab")},
      {"tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "a"}},
  };
  for (const auto& [key, value] : impossible) {
    GgufFile changed = served;
    changed.metadata[key] = value;
    const Status status = check_for_engine(changed);
    ASSERT_FALSE(status.ok()) << key;
    EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(status.error().message.find(key), std::string::npos) << status.error().message;
  }
}

TEST(Refusal, TensorsThatTheEngineWouldAbortOn) {
  const GgufFile served = require(read_gguf(require(find_input(kWired, "models"))));
  const auto changed = [&](const char* name, const std::function<void(GgufTensor&)>& change) {
    GgufFile file = served;
    for (GgufTensor& tensor : file.tensors) {
      if (tensor.name == name) change(tensor);
    }
    const Status status = check_for_engine(file);
    EXPECT_FALSE(status.ok()) << name;
    if (!status.ok()) {
      EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
    }
  };
  const auto renamed = [](GgufTensor& tensor) { tensor.name = "elsewhere"; };
  changed("blk.0.attn_norm.weight", [](GgufTensor& tensor) { tensor.type = 1; });
  changed("blk.0.attn_q.weight", [](GgufTensor& tensor) { tensor.type = 24; });
  changed("blk.0.attn_q.weight", [](GgufTensor& tensor) { tensor.shape[1] /= 2; });
  changed("blk.1.attn_v.weight", [](GgufTensor& tensor) { tensor.shape[1] *= 2; });
  changed("blk.1.attn_output.weight", [](GgufTensor& tensor) { tensor.shape[0] = 1; });
  changed("blk.1.attn_q.weight", renamed);
  changed("blk.0.ffn_up.weight", renamed);
  changed("blk.0.ffn_down.weight", renamed);
}

TEST(Refusal, QueryHeadsThatFormNoWholeGroups) {
  GgufFile changed = require(read_gguf(require(find_input(kWired, "models"))));
  changed.metadata["llama.attention.head_count_kv"] = std::uint64_t{3};
  EXPECT_EQ(read_model_info(changed).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace volvelle::test
