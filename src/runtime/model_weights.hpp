// Weights of a model as floats, of any tensor type that the engine knows, straight from its file.
// For studies of what a model can do; nothing here takes part in running it. Private to the
// library.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "volvelle/io/gguf.hpp"
#include "volvelle/io/mapped_file.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {

/// Immutable after open(); copies share the mapping.
class ModelWeights {
 public:
  /// Fails if the file is not the one that the model was loaded from any more.
  static Result<ModelWeights> open(const Model& model);

  /// Rows and columns of a tensor; nothing if there is none of that name.
  struct Shape {
    std::int64_t n_rows = 0;
    std::int64_t n_columns = 0;
  };
  std::optional<Shape> shape(const std::string& name) const;
  /// Whether the engine multiplies a tensor without rounding what it is multiplied with; false if
  /// there is none of that name.
  bool is_float32(const std::string& name) const;
  /// The first `n_rows` rows (0: all), [n_rows, n_columns]. Fails by name on a missing tensor, too
  /// few rows, and types that do not turn into floats.
  Result<std::vector<float>> rows(const std::string& name, std::int64_t n_rows = 0) const;

 private:
  ModelWeights(GgufFile directory, MappedFile file)
      : directory_(std::move(directory)), file_(std::move(file)) {}
  const GgufTensor* find(const std::string& name) const;
  GgufFile directory_;
  MappedFile file_;
};

}  // namespace volvelle
