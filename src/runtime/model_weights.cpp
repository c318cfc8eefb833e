// read_gguf() has checked that every tensor lies inside the file.
#include "runtime/model_weights.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "runtime/engine.hpp"

namespace volvelle {
namespace {

std::int64_t rows_of(const GgufTensor& tensor) {
  std::int64_t n = 1;
  for (std::size_t i = 1; i < tensor.shape.size(); ++i)
    n *= static_cast<std::int64_t>(tensor.shape[i]);
  return n;
}

Error refusal(ErrorCode code, const std::string& name, const std::string& what) {
  return Error{code, "weights: tensor " + io::quoted(name) + " " + what};
}

}  // namespace

Result<ModelWeights> ModelWeights::open(const Model& model) {
  const ModelInfo& info = model.info();
  VOLVELLE_ASSIGN_OR_RETURN(GgufFile directory, read_gguf(info.path));
  VOLVELLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(info.path));
  VOLVELLE_ASSIGN_OR_RETURN(const std::string fingerprint, model_fingerprint(info.path));
  if (fingerprint == info.fingerprint && file.bytes().size() == directory.file_bytes)
    return ModelWeights(std::move(directory), std::move(file));
  return Error{ErrorCode::kMismatch, "weights: " + io::quoted_path(info.path) +
                                         " has changed since the model was loaded; load it again"};
}

const GgufTensor* ModelWeights::find(const std::string& name) const {
  const auto found = std::find_if(directory_.tensors.begin(), directory_.tensors.end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == directory_.tensors.end() ? nullptr : &*found;
}

bool ModelWeights::is_float32(const std::string& name) const {
  const GgufTensor* const tensor = find(name);
  return tensor != nullptr && tensor->type == 0;  // GGML_TYPE_F32
}

std::optional<ModelWeights::Shape> ModelWeights::shape(const std::string& name) const {
  const GgufTensor* const tensor = find(name);
  if (tensor == nullptr) return std::nullopt;
  return Shape{rows_of(*tensor), static_cast<std::int64_t>(tensor->shape[0])};
}

Result<std::vector<float>> ModelWeights::rows(const std::string& name, std::int64_t n_rows) const {
  const GgufTensor* const tensor = find(name);
  if (tensor == nullptr)
    return refusal(ErrorCode::kUnsupported, name, "is not in the model's file");
  const std::int64_t all = rows_of(*tensor);
  const std::int64_t wanted = n_rows > 0 ? n_rows : all;
  if (wanted > all)
    return refusal(ErrorCode::kCorrupt, name,
                   "has " + std::to_string(all) + " rows, expected " + std::to_string(wanted));
  const auto columns = static_cast<std::int64_t>(tensor->shape[0]);
  const auto type = static_cast<ggml_type>(tensor->type);
  const ggml_to_float_t convert =
      tensor->type < GGML_TYPE_COUNT ? ggml_get_type_traits(type)->to_float : nullptr;
  if (type != GGML_TYPE_F32 && convert == nullptr)
    return refusal(ErrorCode::kUnsupported, name, "has a type that does not turn into floats");
  std::vector<float> out(static_cast<std::size_t>(wanted * columns));
  const std::byte* const from = file_.bytes().data() + tensor->offset;
  if (type == GGML_TYPE_F32) {
    std::memcpy(out.data(), from, out.size() * sizeof(float));
  } else {
    convert(from, out.data(), wanted * columns);
  }
  return out;
}

}  // namespace volvelle
