// Model files that are damaged, or made to harm: each ends in one line that says what is wrong, or
// in a model that computes what plain llama.cpp computes with it. Never in a signal, a hang, an
// exception, or more memory than such a model could need.
//
// Every file is loaded and run in a process of its own, with limits on memory and time.
#include <cmath>
#include <functional>

#include "runtime/child_process.hpp"
#include "runtime/gguf_mutation.hpp"
#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle::test {
namespace {

constexpr int kLoaded = 0;
constexpr int kRefused = 1;
constexpr int kDiffers = 2;

// Weights are as before or damaged, and only a few tokens are read: far above what another order of
// sums gives, far below what a wrong shape, window or rotation gives.
constexpr double kMaxKl = 1e-4;

ChildReport compare_with_plain(const Model& model, std::span<const TokenId> tokens,
                               std::span<const float> ours) {
  EngineStepperOptions options;
  options.n_ctx = static_cast<std::int64_t>(tokens.size());
  options.n_threads = 1;
  options.n_ubatch = 32;
  options.flash_attention = false;
  options.kv_type = ElementType::kF32;
  const auto plain = require(make_engine_stepper(model, options));
  require(plain->step(tokens, Logits::kLast));
  for (const float logit : ours) {
    if (!std::isfinite(logit)) return {kDiffers, "logits that are not finite"};
  }
  for (const float logit : plain->logits(0)) {
    if (!std::isfinite(logit)) return {kLoaded, "plain llama.cpp gives logits that are not finite"};
  }
  const double kl = kl_divergence(plain->logits(0), ours);
  return {kl <= kMaxKl ? kLoaded : kDiffers, "KL to plain llama.cpp " + std::to_string(kl)};
}

/// Loads the file, reads a text with it and compares.
ChildReport judge(const std::filesystem::path& path) {
  const auto refused = [](const Error& error) { return ChildReport{kRefused, error.message}; };
  const Result<Model> model = Model::load(path, {});
  if (!model.ok()) return refused(model.error());
  const KvTypes f32{ElementType::kF32, ElementType::kF32};
  SessionOptions options;
  options.n_threads = 1;
  options.n_ubatch = 32;
  options.kv = f32;
  Result<Session> session = Session::create(*model, options);
  if (!session.ok()) return refused(session.error());
  const auto text = model->tokenizer().tokenize("the quick brown fox", {.add_special = true});
  if (!text.ok()) return refused(text.error());
  if (text->tokens.empty()) return {kRefused, "the tokenizer makes nothing of a text"};
  Result<ContextMemory> memory = session->begin(full_with(f32));
  if (!memory.ok()) return refused(memory.error());
  const Status stepped = session->step(*memory, text->tokens, Logits::kLast);
  if (!stepped.ok()) return refused(stepped.error());
  return compare_with_plain(*model, text->tokens, session->logits());
}

std::string tiny_model(const std::string& name) {
  return volvelle::testing::read_file(require(find_input("tiny/" + name + ".gguf", "models")));
}

::testing::AssertionResult ends_well(const ChildResult& result) {
  if (result.signal != 0)
    return ::testing::AssertionFailure() << "signal " << result.signal << ": " << result.text;
  if (result.exit_code != kLoaded && result.exit_code != kRefused)
    return ::testing::AssertionFailure() << "exit " << result.exit_code << ": " << result.text;
  if (!volvelle::testing::is_printable_line(result.text))
    return ::testing::AssertionFailure() << "not one printable line: " << result.text;
  return ::testing::AssertionSuccess();
}

/// A file made of a good one, and what the refusal must say; "": whatever it is, it ends well.
struct Crafted {
  const char* model;
  std::function<std::string(RawGguf&)> make;
  const char* reason;
};

void expect_refusals(const std::vector<Crafted>& crafted) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder / "model.gguf";
  for (std::size_t i = 0; i < crafted.size(); ++i) {
    RawGguf file(tiny_model(crafted[i].model));
    volvelle::testing::write_file(path, crafted[i].make(file));
    const ChildResult result = run_in_child([&] { return judge(path); });
    SCOPED_TRACE("case " + std::to_string(i) + " of " + crafted[i].model +
                 ", expected: " + crafted[i].reason);
    EXPECT_TRUE(ends_well(result));
    if (*crafted[i].reason == '\0') continue;
    EXPECT_EQ(result.exit_code, kRefused) << result.text;
    EXPECT_NE(result.text.find(crafted[i].reason), std::string::npos) << result.text;
  }
}

/// Applies a change and places the tensors again.
Crafted with(const char* model, const std::function<void(RawGguf&)>& change, const char* reason) {
  return {model,
          [=](RawGguf& file) {
            change(file);
            file.place_again();
            return file.file();
          },
          reason};
}

Crafted with_u32(const char* model, const std::string& key, std::uint32_t value,
                 const char* reason) {
  return with(
      model, [=](RawGguf& file) { file.set_u32(key, value); }, reason);
}
Crafted with_f32(const char* model, const std::string& key, float value, const char* reason) {
  return with(
      model, [=](RawGguf& file) { file.set_f32(key, value); }, reason);
}
Crafted with_text(const char* model, const std::string& key, const std::string& value,
                  const char* reason) {
  return with(
      model, [=](RawGguf& file) { file.set_text(key, value); }, reason);
}

constexpr const char* kLlama = "llama-gqa3";

TEST(BadGguf, TheUnchangedFileRuns) {  // else the refusals below would mean nothing
  TemporaryFolder folder;
  for (const char* name : {kLlama, "llama-moe", "qwen2", "gemma4", "gpt-oss"}) {
    RawGguf file(tiny_model(name));
    file.place_again();
    volvelle::testing::write_file(folder / "model.gguf", file.file());
    const ChildResult result = run_in_child([&] { return judge(folder / "model.gguf"); });
    EXPECT_EQ(result.exit_code, kLoaded) << name << ": " << result.text;
  }
}

TEST(BadGguf, FilesThatAreNoGguf) {
  const auto whole = [](const std::string& bytes, const char* reason) {
    return Crafted{kLlama, [=](RawGguf&) { return bytes; }, reason};
  };
  const std::string preamble = "GGUF" + le<std::uint32_t>(3);
  expect_refusals({
      whole("", "'GGUF'"),
      whole("G", "'GGUF'"),
      whole("GGUF", "version"),
      whole(preamble, "tensor count"),
      whole(preamble + le<std::uint64_t>(0) + le<std::uint64_t>(0), "general.architecture"),
      whole(preamble + le<std::uint64_t>(1ull << 63) + le<std::uint64_t>(1), "tensor count"),
      whole(preamble + le<std::uint64_t>(0) + le<std::uint64_t>(1ull << 63), "key count"),
      {kLlama, [](RawGguf& file) { return file.file(INT64_MAX, -1); }, "tensor count"},
      {kLlama, [](RawGguf& file) { return file.file(-1, 1 << 30); }, "key count"},
      {kLlama, [](RawGguf& file) { return file.file(0, -1); }, "is missing"},
      {kLlama, [](RawGguf& file) { return file.file().substr(0, 3000); }, "reading GGUF"},
      {kLlama, [](RawGguf& file) { return file.file().substr(0, 300000); }, "inside the file"},
  });
}

TEST(BadGguf, ValuesThatLieAboutThemselves) {
  const auto raw = [](std::uint32_t type, const std::string& value, const char* reason) {
    return with(
        kLlama, [=](RawGguf& file) { file.set("llama.context_length", type, value); }, reason);
  };
  const std::string nested =
      gguf::array(gguf::kArray, 1, gguf::array(gguf::kU8, 1, std::string(1, 'x')));
  expect_refusals({
      raw(gguf::kString, le<std::uint64_t>(1ull << 63), "declares 9223372036854775808 bytes"),
      raw(gguf::kArray, le(gguf::kF64) + le<std::uint64_t>(1ull << 63), "array length"),
      raw(gguf::kArray, nested, "arrays inside arrays"),
      raw(gguf::kString, gguf::text("16384"), "'llama.context_length'"),
      raw(gguf::kF32, le(16384.0f), "llama.context_length"),
      raw(gguf::kI32, le<std::int32_t>(-1), "'llama.context_length' is -1"),
      raw(gguf::kU64, le<std::uint64_t>(16384), "context_length has wrong type"),
      raw(99, "", "unknown value type 99"),
  });
}

TEST(BadGguf, TensorsOutOfPlace) {
  const auto tensor = [](const std::function<void(RawTensor&)>& change, const char* reason) {
    return Crafted{kLlama,
                   [=](RawGguf& file) {
                     change(*file.find_tensor("blk.0.attn_k.weight"));
                     return file.file();
                   },
                   reason};
  };
  expect_refusals({
      tensor(
          [](RawTensor& t) {
            t.dims = {1ull << 32, 1ull << 32};
          },
          "overflow"),
      tensor(
          [](RawTensor& t) {
            t.dims = {0, 48};
          },
          "non-zero"),
      tensor(
          [](RawTensor& t) {
            t.dims = {50000, 50000};
          },
          "more bytes than the file"),
      tensor(
          [](RawTensor& t) {
            t.dims = {144, 1, 1, 1, 48};
          },
          "dimensions"),
      tensor([](RawTensor& t) { t.offset = 1 << 30; }, "inside the file"),
      tensor([](RawTensor& t) { t.offset = ~31ull; }, "inside the file"),
      tensor([](RawTensor& t) { t.offset += 4; }, "multiple of 32"),
      tensor([](RawTensor& t) { t.offset -= 32; }, "overlap"),
      tensor([](RawTensor& t) { t.name = "blk.0.attn_q.weight"; }, "occurs twice"),
      tensor([](RawTensor& t) { t.name = "\xFF\n"; }, "blk.0.attn_k.weight"),
      tensor([](RawTensor& t) { t.name = std::string(64, 'x'); }, "1 to 63"),
  });
}

TEST(BadGguf, TensorsThatDoNotFitTheArchitecture) {
  const auto tensor = [](const char* model, const char* name,
                         const std::function<void(RawTensor&)>& change, const char* reason) {
    return with(
        model, [=](RawGguf& file) { change(*file.find_tensor(name)); }, reason);
  };
  const auto missing = [](const char* model, const std::string& name, const char* reason) {
    return with(
        model,
        [=](RawGguf& file) {
          std::erase_if(file.tensors, [&](const RawTensor& t) { return t.name == name; });
        },
        reason);
  };
  const auto dims = [](std::vector<std::uint64_t> wanted) {
    return [=](RawTensor& t) { t.dims = wanted; };
  };
  const auto type = [](std::uint32_t wanted) { return [=](RawTensor& t) { t.type = wanted; }; };
  expect_refusals({
      missing(kLlama, "token_embd.weight", "token_embd.weight"),
      missing(kLlama, "output_norm.weight", "output_norm.weight"),
      missing(kLlama, "blk.1.ffn_up.weight", "'blk.1.ffn_up.weight' is missing"),
      missing("phi3", "blk.0.attn_qkv.weight", "'blk.0.attn_q.weight' is missing"),
      missing("mimo2", "blk.3.ffn_up.weight", "'blk.3.ffn_up.weight' is missing"),
      tensor(kLlama, "token_embd.weight", dims({144, 5}), "token_embd.weight"),
      tensor(kLlama, "token_embd.weight", dims({48, 846}), "token_embd.weight"),
      tensor(kLlama, "blk.0.attn_norm.weight", dims({143}), "blk.0.attn_norm.weight"),
      tensor(kLlama, "blk.0.attn_norm.weight", dims({144, 2}), "blk.0.attn_norm.weight"),
      tensor(kLlama, "blk.0.attn_q.weight", dims({144, 48}), "'blk.0.attn_q.weight' has 48 rows"),
      tensor(kLlama, "blk.0.attn_norm.weight", type(1), "expected f32"),
      tensor("qwen2", "blk.0.attn_q.bias", type(1), "expected f32"),
      tensor(kLlama, "blk.0.attn_k.weight", type(26), "expected a type of weights"),
      tensor(kLlama, "token_embd.weight", type(26), "expected a type of weights"),
      tensor("llama-rope-llama3", "rope_freqs.weight", dims({15}), "rope_freqs.weight"),
      tensor("gpt-oss", "blk.0.attn_sinks.weight", dims({3}), "attn_sinks"),
  });
}

TEST(BadGguf, NumbersThatMakeNoSense) {
  const std::string a = "llama.";
  expect_refusals({
      with_u32(kLlama, a + "block_count", 0, "block_count"),
      with_u32(kLlama, a + "block_count", 513, "block_count"),
      with_u32(kLlama, a + "block_count", 3, "blk.2."),
      with_u32(kLlama, a + "nextn_predict_layers", 2, "nextn_predict_layers"),
      with_u32(kLlama, a + "embedding_length", 0, "embedding_length"),
      with_u32(kLlama, a + "embedding_length", 153, "rotates whole heads"),
      with_u32(kLlama, a + "feed_forward_length", 0, "ffn_gate"),
      with_u32(kLlama, a + "attention.head_count", 0, "head_count"),
      with_u32(kLlama, a + "attention.head_count", UINT32_MAX, "head_count"),
      with_u32(kLlama, a + "attention.head_count_kv", 0, "head_count_kv"),
      with_u32(kLlama, a + "attention.head_count_kv", 18, "KV heads"),
      with_u32(kLlama, a + "attention.key_length", 17, "dimensions"),
      with_u32(kLlama, a + "attention.value_length", 32, "attention.value_length"),
      with_u32(kLlama, a + "attention.key_length", 1 << 20, "dimensions"),
      with_u32(kLlama, a + "rope.dimension_count", 0, "rope.dimension_count"),
      with_u32(kLlama, a + "rope.dimension_count", 8, "rotates whole heads"),
      with_u32(kLlama, a + "rope.dimension_count", 18, "from 2 to 16"),
      with_u32("stablelm", "stablelm.rope.dimension_count", 7, "even number"),
      with_u32("stablelm", "stablelm.rope.dimension_count", 64, "from 2 to 32"),
      with_u32("gemma4", "gemma4.rope.dimension_count_swa", 64, "from 2 to 32"),
      with_f32(kLlama, a + "attention.layer_norm_rms_epsilon", NAN, "epsilon"),
      with_f32(kLlama, a + "attention.layer_norm_rms_epsilon", -1.0f, "epsilon"),
      with_f32(kLlama, a + "rope.freq_base", NAN, "rope.freq_base"),
      with_f32(kLlama, a + "rope.freq_base", 0.0f, "rope.freq_base"),
      with_f32("gemma3", "gemma3.rope.freq_base_swa", -1.0f, "rope.freq_base_swa"),
      with_f32(kLlama, a + "rope.scaling.factor", NAN, ""),
      with_f32(kLlama, a + "attention.scale", NAN, ""),
      with_text(kLlama, a + "rope.scaling.type", "su", "rope.scaling.type"),
  });
}

TEST(BadGguf, ExpertsAndLayersThatAreNotThere) {
  expect_refusals({
      with_u32(kLlama, "llama.expert_count", 8, "expert_used_count"),
      with_u32(kLlama, "llama.expert_used_count", 2, "expert_used_count"),
      with_u32("llama-moe", "llama.expert_count", 1025, "expert_count"),
      with_u32("llama-moe", "llama.expert_count", 8, "ffn_gate_inp"),
      with_u32("llama-moe", "llama.expert_used_count", 0, "expert_used_count"),
      with_u32("llama-moe", "llama.expert_used_count", 5, "expert_used_count"),
      with_u32("llama-moe", "llama.expert_group_count", 3, "expert_group_count"),
      with_u32("llama-moe", "llama.expert_group_count", 2, "expert_group_used_count"),
      with_u32("gemma4", "gemma4.attention.shared_kv_layers", 3, "shared_kv_layers"),
      with_u32("gemma4", "gemma4.attention.shared_kv_layers", 7, "shared_kv_layers"),
      with_u32("gemma3", "gemma3.attention.sliding_window", 1, "sliding window"),
      with_u32("gemma3", "gemma3.attention.sliding_window", UINT32_MAX, ""),
      with_u32("gemma2", "gemma2.attention.sliding_window", 0, ""),
      with_u32("gemma3", "gemma3.attention.sliding_window_pattern", 0, "sliding_window_pattern"),
      with_u32("gemma3", "gemma3.attention.sliding_window_pattern", 1, "sliding_window_pattern"),
  });
}

TEST(BadGguf, VocabulariesThatContradictThemselves) {
  const auto strings = [](const std::vector<std::string>& words) {
    std::string items;
    for (const std::string& word : words) items += gguf::text(word);
    return gguf::array(gguf::kString, words.size(), items);
  };
  const auto set = [](const std::string& key, const std::string& value, const char* reason) {
    return with(
        kLlama, [=](RawGguf& file) { file.set(key, gguf::kArray, value); }, reason);
  };
  const auto erased = [](const char* key, const char* reason) {
    return with(
        kLlama, [=](RawGguf& file) { file.erase(key); }, reason);
  };
  const std::string tokens = "tokenizer.ggml.tokens";
  expect_refusals({
      set(tokens, strings({"a", "b", "a"}), "tokenizer.ggml.token_type"),
      with(
          kLlama,
          [=](RawGguf& file) {
            file.erase("tokenizer.ggml.token_type");
            file.set(tokens, gguf::kArray, strings(std::vector<std::string>(282, "same")));
          },
          "'same' twice"),
      with(
          kLlama,
          [=](RawGguf& file) {
            file.erase("tokenizer.ggml.token_type");
            file.set_u32("tokenizer.ggml.bos_token_id", 0);
            file.set_u32("tokenizer.ggml.eos_token_id", 1);
            file.set(tokens, gguf::kArray, strings({"a", "b", "c"}));
          },
          "token_embd.weight"),
      set(tokens, gguf::array(gguf::kI32, 1, le<std::int32_t>(1)), tokens.c_str()),
      set(tokens, strings({}), tokens.c_str()),
      set("tokenizer.ggml.scores", gguf::array(gguf::kF32, 1, le(1.0f)), "scores"),
      set("tokenizer.ggml.token_type", gguf::array(gguf::kI32, 1, le<std::int32_t>(99)),
          "token_type"),
      set("tokenizer.ggml.merges", strings({"", " ", "nospace", "\xFF \xFE", "a b c"}), ""),
      set("tokenizer.ggml.merges", gguf::array(gguf::kU8, 3, "abc"), "merges"),
      erased("tokenizer.ggml.merges", "merges"),
      erased("tokenizer.ggml.tokens", "vocab"),
      erased("tokenizer.ggml.model", "tokenizer.ggml.model"),
      with_u32(kLlama, "tokenizer.ggml.bos_token_id", 282, "bos_token_id"),
      with_text(kLlama, "tokenizer.ggml.model", "none", "without a vocabulary"),
      with_text(kLlama, "tokenizer.ggml.model", "llama", "no token for a part of the text"),
      with_text(kLlama, "tokenizer.ggml.model", "rwkv", "no token for a part of the text"),
      with_text(kLlama, "tokenizer.ggml.model", std::string(1 << 20, 'x'), "unknown tokenizer"),
      with_text(kLlama, "tokenizer.ggml.pre", "\xFF\n%s%n", "\\xff\\x0a"),
  });
}

TEST(BadGguf, NamesThatAreNoText) {
  expect_refusals({
      with_text(kLlama, "general.architecture", "", "general.architecture"),
      with_text(kLlama, "general.architecture", "lla\nma", "'lla\\x0ama'"),
      with_text(kLlama, "general.architecture", "\xC3\x28", "'\\xc3('"),
      with_text(kLlama, "general.architecture", std::string(1 << 16, 'x'), "no name"),
      with_text(kLlama, "general.architecture", "frobnicate", "frobnicate"),
      with(
          kLlama,
          [](RawGguf& file) {
            file.set_text("general.name", "a\x1B[31mb\xFF\nc");
            file.set_u32("split.count", 2);
          },
          "a\\x1b[31mb\\xff\\x0ac"),
      with_text(kLlama, "tokenizer.chat_template", "\xFF{%\n", ""),
      with(
          kLlama, [](RawGguf& file) { file.keys.push_back(file.keys[3]); }, "occurs twice"),
  });
}

/// Seeds are the same on every run; VOLVELLE_FULL tries ten times as many.
TEST(BadGguf, SeededMutationsEndWell) {
  constexpr const char* kModels[] = {kLlama,     "llama-moe", "llama-spm",      "llama-rope-yarn",
                                     "openelm",  "qwen2",     "qwen2vl",        "phi3",
                                     "stablelm", "gptneox",   "plamo3-k64-v32", "gemma2",
                                     "gemma3",   "gemma4",    "gpt-oss",        "mimo2"};
  const unsigned n_seeds = std::getenv("VOLVELLE_FULL") != nullptr ? 400 : 40;
  TemporaryFolder folder;
  const std::filesystem::path path = folder / "model.gguf";
  int n_loaded = 0;
  int n_refused = 0;
  for (const char* name : kModels) {
    const std::string good = tiny_model(name);
    for (unsigned seed = 0; seed < n_seeds; ++seed) {
      volvelle::testing::write_file(path, Mutator(seed).mutate(good));
      const ChildResult result = run_in_child([&] { return judge(path); });
      EXPECT_TRUE(ends_well(result)) << name << ", seed " << seed;
      n_loaded += result.exit_code == kLoaded ? 1 : 0;
      n_refused += result.exit_code == kRefused ? 1 : 0;
    }
  }
  EXPECT_GT(n_loaded, 30);  // mutations that reach the arithmetic
  EXPECT_GT(n_refused, 300);
}

}  // namespace
}  // namespace volvelle::test
