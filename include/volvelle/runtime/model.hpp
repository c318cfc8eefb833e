// A GGUF model, loaded by llama.cpp after we have checked the file and know that our memory can
// serve it. What can not be served exactly is refused by name here, or by the first graph that
// shows it. Immutable after load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "volvelle/base/cancel.hpp"
#include "volvelle/base/log.hpp"
#include "volvelle/base/result.hpp"
#include "volvelle/memory/kv_store.hpp"
#include "volvelle/rope/rope_config.hpp"
#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle {

struct ModelInfo {
  std::filesystem::path path;  // absolute
  std::uint64_t file_bytes = 0;
  std::string name;            // general.name, else the file's stem
  std::string architecture;    // "llama"
  std::string fingerprint;     // hex; see model_fingerprint()
  std::string tokenizer_hash;  // hex, over the tokenizer's metadata
  std::string chat_template;   // text of the model's own template, may be empty
  int n_layers = 0;
  int n_heads = 0;
  std::vector<LayerShape> layers;  // [n_layers], as the model's own graph shows them
  std::vector<int> layer_readers;  // [n_layers]; how many layers attend to each layer's rows
  std::int64_t n_embd = 0;
  std::int64_t n_vocab = 0;
  std::int64_t context_length = 0;  // trained
  RopeConfig rope;
  std::vector<std::string> warnings;  // what the file leaves to a guess, one line each
};

struct ModelOptions {
  LogSink log;  // warnings and engine messages; process-wide, the last loaded model's sink wins
  CancelToken cancel;
};

/// Immutable after load; sessions on several threads may share it.
class Model {
 public:
  /// Refuses by name what this version can not serve exactly (ALiBi, MLA, chunked attention,
  /// recurrent layers, encoders, LongRoPE).
  static Result<Model> load(const std::filesystem::path& path, const ModelOptions& options);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelInfo& info() const noexcept;
  const Tokenizer& tokenizer() const noexcept;

  struct Impl;
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Path of a model, text or other input named on the command line: the path itself if it exists,
/// else the name inside the cache folder's `kind` subfolder ("models", "texts"). The error names
/// both places.
Result<std::filesystem::path> find_input(const std::string& name, const std::string& kind);
/// ${VOLVELLE_CACHE:-$HOME/.cache/volvelle}; empty if neither variable is set.
std::filesystem::path cache_folder();

/// Hash over every metadata entry that matters, and every tensor's name, type, shape and contents.
/// It is kept in the cache folder, if there is one, under the file's path, size, times and inode.
Result<std::string> model_fingerprint(const std::filesystem::path& path,
                                      const CancelToken& cancel = {});

/// "llama.cpp 0.5.0 (ggml 0.25.3)": goes into files and reports.
std::string engine_version();

}  // namespace volvelle
