// See the header. Fingerprints of models are kept in the cache folder, so looking through it does
// not read weights again.
#include "stored_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/result_macros.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

bool has_fingerprint(const fs::path& path, const std::string& fingerprint) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  const auto found = model_fingerprint(path);
  return found.ok() && *found == fingerprint;
}

}  // namespace

Result<fs::path> find_model(const std::string& model_flag, const MemoryRecord& record,
                            const std::string& file) {
  if (!model_flag.empty()) return find_input(model_flag, "models");
  if (has_fingerprint(record.model_path, record.model_fingerprint)) {
    return fs::path(record.model_path);
  }
  const fs::path folder = cache_folder() / "models";
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const bool is_model = entry.path().extension() == ".gguf";
    if (is_model && has_fingerprint(entry.path(), record.model_fingerprint)) return entry.path();
  }
  return Error{
      ErrorCode::kNotFound,
      fmt::format("finding the model of {}: no -m was given, the recorded path {} does not "
                  "hold it, and no model in {} has the fingerprint {}: give -m",
                  file, record.model_path, folder.string(), record.model_fingerprint)};
}

namespace {

Status require_equal(const std::string& name, const Model& model, const MemoryRecord& record,
                     const std::string& what, const std::string& stored, const std::string& found) {
  if (stored == found) return {};
  return Error{
      ErrorCode::kMismatch,
      fmt::format("using {} with {}: the {} differs (stored {}, model has {}): use the "
                  "model that folded it, '{}'",
                  name, model.info().path.string(), what, stored, found, record.model_name)};
}

/// Everything but the chat format.
Status require_same_model(const MemoryFile& file, const Model& model, const std::string& name) {
  const MemoryRecord& record = file.record();
  const ModelInfo& info = model.info();
  VOLVELLE_RETURN_IF_ERROR(require_equal(name, model, record, "fingerprint",
                                         record.model_fingerprint, info.fingerprint));
  VOLVELLE_RETURN_IF_ERROR(
      require_equal(name, model, record, "tokenizer", record.tokenizer_hash, info.tokenizer_hash));
  VOLVELLE_RETURN_IF_ERROR(
      require_equal(name, model, record, "RoPE configuration", record.rope, info.rope.describe()));
  if (file.layout().layers == info.layers) return {};
  return Error{ErrorCode::kMismatch,
               fmt::format("using {} with {}: the layers' head counts or sizes differ: use the "
                           "model that folded it",
                           name, info.path.string())};
}

}  // namespace

Status require_text(const MemoryRecord& record, const std::string& name) {
  if (record.kind != kCalibrationMemory) return {};
  return Error{
      ErrorCode::kInvalidArgument,
      fmt::format("{} is a calibration, not the memory of a text: give it to --calibration", name)};
}

Result<ChatFormat> require_match(const MemoryFile& file, const Model& model,
                                 const std::string& name) {
  const MemoryRecord& record = file.record();
  VOLVELLE_RETURN_IF_ERROR(require_text(record, name));
  // The model first: with another one even the stored chat format may be unknown.
  VOLVELLE_RETURN_IF_ERROR(require_same_model(file, model, name));
  VOLVELLE_ASSIGN_OR_RETURN(ChatFormat format, make_chat_format(model, record.chat_format));
  VOLVELLE_RETURN_IF_ERROR(require_equal(name, model, record, "chat template", record.template_hash,
                                         format.template_hash));
  return format;
}

Status apply_calibration(const std::string& path, const Model& model, ContextMemory& memory,
                         Console& console) {
  if (path.empty()) return {};
  VOLVELLE_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::open(path));
  if (file.record().kind != kCalibrationMemory) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} is the memory of a text, not a calibration: make one with "
                             "'volvelle calibrate'",
                             path)};
  }
  VOLVELLE_RETURN_IF_ERROR(require_same_model(file, model, path));
  VOLVELLE_ASSIGN_OR_RETURN(const ContextMemory calibration, restore_memory(file, console));
  return memory.adopt_codes(calibration);
}

Result<MemorySpec> stored_spec(const MemoryRecord& record) {
  VOLVELLE_ASSIGN_OR_RETURN(MemorySpec spec, parse_memory_spec(record.spec));
  VOLVELLE_RETURN_IF_ERROR(require_supported(spec));
  return spec;
}

Result<ContextMemory> restore_memory(MemoryFile& file, Console& console) {
  VOLVELLE_RETURN_IF_ERROR(file.verify_rows(console.progress_sink()));
  return file.restore();
}

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return end - a.begin();
}

}  // namespace volvelle::cli
