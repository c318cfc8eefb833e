// A model's metadata as the engine's loader reads it, for the rules that are checked before the
// engine sees a file. Private to runtime.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "volvelle/io/gguf.hpp"

namespace volvelle {

class EngineKeys {
 public:
  explicit EngineKeys(const GgufFile& file)
      : file_(file), architecture_(file.string("general.architecture").value_or("")) {}

  const GgufFile& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }

  /// By a key's name without the architecture.
  const GgufValue* find(const std::string& name) const;
  std::optional<std::int64_t> integer(const std::string& name) const;
  std::optional<double> number(const std::string& name) const;
  /// A number for all layers, or an array with one per layer.
  std::vector<std::int64_t> values(const std::string& name) const;
  std::int64_t largest(const std::string& name) const;

  /// Layers that compute: without those that only predict further tokens.
  std::int64_t n_layers() const;
  /// Of a head, in other and in windowed layers. `name`: key_length or value_length.
  std::vector<std::int64_t> head_dims(const std::string& name) const;
  bool windowed(std::int64_t layer) const;

  Error bad(const std::string& name, const std::string& what) const;
  Error bad_key(const std::string& full_name, const std::string& what) const;

 private:
  const GgufFile& file_;
  const std::string architecture_;
};

/// Rules for numbers, names and the vocabulary.
Status check_engine_metadata(const EngineKeys& keys);

}  // namespace volvelle
