// What the tests on real models share. The models and texts come from scripts/setup.sh; without
// them the tests fail and say so.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "volvelle/io/atomic_file.hpp"
#include "volvelle/runtime/session.hpp"
#include "volvelle/runtime/stepper.hpp"

namespace volvelle::test {

inline constexpr const char* kSmolF32 = "smollm2-135m-instruct-f32.gguf";
inline constexpr const char* kSmolQ41 = "smollm2-135m-instruct-q4_1.gguf";
inline constexpr const char* kWired = "wired-retriever.gguf";
inline constexpr const char* kGemmaF32 = "gemma-3-270m-f32.gguf";

template <class T>
T require(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
inline void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message);
}

inline Model load_model(const std::string& name) {
  return require(Model::load(require(find_input(name, "models")), {}));
}

/// The first `n` tokens of a novel, BOS included.
inline std::vector<TokenId> book_tokens(const Model& model, const std::string& text,
                                        std::size_t n) {
  std::string content = require(read_text_file(require(find_input(text, "texts"))));
  content.resize(std::min(content.size(), n * 8));
  std::vector<TokenId> tokens =
      require(model.tokenizer().tokenize(content, {.add_special = true})).tokens;
  if (tokens.size() < n) throw std::runtime_error("the text has fewer tokens than the test wants");
  tokens.resize(n);
  return tokens;
}

inline Session open_session(const Model& model, int n_ubatch, bool deterministic = false,
                            KvTypes kv = {}) {
  SessionOptions options;
  options.n_threads = 2;
  options.n_ubatch = n_ubatch;
  options.deterministic = deterministic;
  options.kv = kv;
  return require(Session::create(model, options));
}

inline MemorySpec full_with(KvTypes kv) {
  MemorySpec spec = MemorySpec::full_memory();
  spec.kv = KvTerm{std::string(to_string(kv.k)), std::string(to_string(kv.v))};
  return spec;
}

inline std::vector<float> copy(std::span<const float> row) { return {row.begin(), row.end()}; }

/// A fresh folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "volvelle-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace volvelle::test
