// `volvelle inspect`: what is inside a GGUF, a memory file or a capture, and is it intact.
//
// The kind is decided by the first bytes, never by the file's name. Only headers are read, unless
// --verify asks for every block. A GGUF carries no checksums: there --verify means the structure,
// and the fingerprint of the contents to compare with another copy.
#include <fmt/format.h>

#include <cstring>

#include "base/result_macros.hpp"
#include "command.hpp"
#include "options.hpp"
#include "volvelle/io/gguf.hpp"
#include "volvelle/io/mapped_file.hpp"
#include "volvelle/io/safetensors.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

// Metadata key that every memory file has, of whatever format version.
constexpr const char* kMemoryMarker = "volvelle_format";

struct InspectFlags {
  std::string file;
  bool verify = false;
};

void declare(CLI::App& app, InspectFlags& flags) {
  app.add_option("FILE", flags.file,
                 "GGUF, memory file or capture; also the name of one in the cache folder's models/")
      ->required();
  app.add_flag(
      "--verify", flags.verify,
      "Memory files: every block's checksum, and that the memory can be restored; GGUF and "
      "captures: the structure alone, they hold no checksums (exit 3 if damaged or unusable)");
}

Json metadata_json(const GgufFile& gguf) {
  constexpr std::size_t kShown = 8;  // vocabularies have a hundred thousand entries
  Json object = Json::object();
  for (const auto& [key, value] : gguf.metadata) {
    object[key] = std::visit(
        [](const auto& v) -> Json {
          if constexpr (requires { v.size() > v.max_size(), v.begin(), v.substr(0); }) {
            return v;  // a string
          } else if constexpr (requires { v.begin(); }) {
            if (v.size() <= kShown) return Json(v);
            return fmt::format("[{} entries]", v.size());
          } else {
            return v;
          }
        },
        value);
  }
  return object;
}

Result<Report> inspect_gguf(const fs::path& path, bool verify) {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufFile gguf, read_gguf(path));
  const std::string arch = gguf.string("general.architecture").value_or("");
  Json types = Json::object();
  for (const GgufTensor& tensor : gguf.tensors) {
    const auto info = ggml_type_info(tensor.type);
    const std::string name = info ? std::string(info->name) : fmt::format("type {}", tensor.type);
    types[name] = types.value(name, 0) + 1;
  }
  Report report;
  report.json = {{"kind", "gguf"},
                 {"path", path.string()},
                 {"file_bytes", gguf.file_bytes},
                 {"gguf_version", gguf.version},
                 {"name", json_or_null(gguf.string("general.name"))},
                 {"architecture", arch},
                 {"context_length", json_or_null(gguf.integer(arch + ".context_length"))},
                 {"n_layers", json_or_null(gguf.integer(arch + ".block_count"))},
                 {"n_embd", json_or_null(gguf.integer(arch + ".embedding_length"))},
                 {"n_heads", json_or_null(gguf.integer(arch + ".attention.head_count"))},
                 {"n_kv_heads", json_or_null(gguf.integer(arch + ".attention.head_count_kv"))},
                 {"tokenizer", json_or_null(gguf.string("tokenizer.ggml.model"))},
                 {"n_tensors", gguf.tensors.size()},
                 {"tensor_types", types},
                 {"verified", Json()}};
  if (verify) {
    VOLVELLE_ASSIGN_OR_RETURN(report.json["fingerprint"], model_fingerprint(path));
    report.json["verified"] = true;
  }
  report.text = render_fields(report.json) + fmt::format("tensor types: {}\n", to_line(types));
  report.json["metadata"] = metadata_json(gguf);
  return report;
}

Json layers_json(const StoreLayout& layout) {
  Json layers = Json::array();
  for (const LayerShape& layer : layout.layers) {
    layers.push_back({{"n_kv_heads", layer.n_kv_heads},
                      {"head_dim_k", layer.head_dim_k},
                      {"head_dim_v", layer.head_dim_v},
                      {"window", layer.window}});
  }
  return layers;
}

// Intact bytes are not enough: the spec must be one of this version's, and the rows those it keeps.
Status require_usable(MemoryFile& file, const fs::path& path, Console& console) {
  VOLVELLE_RETURN_IF_ERROR(file.verify_rows(console.progress_sink()));
  const auto check = [&]() -> Status {
    VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, parse_memory_spec(file.record().spec));
    VOLVELLE_RETURN_IF_ERROR(require_supported(spec));
    const auto restored = file.restore();
    return restored.ok() ? Status() : Status(restored.error());
  };
  const Status usable = check();
  if (usable.ok()) return {};
  return Error{ErrorCode::kVerification,
               fmt::format("verifying {}: its bytes are intact, but it can not be used: {}",
                           path.string(), usable.error().message)};
}

Result<Report> inspect_memory(const fs::path& path, bool verify, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::open(path));
  if (verify) VOLVELLE_RETURN_IF_ERROR(require_usable(file, path, console));
  const MemoryRecord& record = file.record();
  const StoreLayout& layout = file.layout();
  std::size_t n_rows = 0;  // of the group that keeps most
  for (const auto& positions : file.row_positions()) n_rows = std::max(n_rows, positions.size());
  Report report;
  report.json = {{"kind", record.kind == kCalibrationMemory ? kCalibrationMemory : "memory"},
                 {"path", path.string()},
                 {"file_bytes", file.file_bytes()},
                 {"format_version", kMemoryFormatVersion},
                 {"spec", record.spec},
                 {"n_tokens", record.tokens.size()},
                 {"n_rows", n_rows},
                 {"chunk", record.chunk},
                 {"kv_bytes", file.row_bytes()},
                 {"k_type", std::string(to_string(layout.k_type))},
                 {"v_type", std::string(to_string(layout.v_type))},
                 {"n_layers", layout.layers.size()},
                 {"text_bytes", record.text.size()},
                 {"text_begin_token", record.text_begin_token},
                 {"chat_format", record.chat_format},
                 {"template_hash", record.template_hash},
                 {"rope", record.rope},
                 {"engine", record.engine},
                 {"model_name", record.model_name},
                 {"model_path", record.model_path},
                 {"model_fingerprint", record.model_fingerprint},
                 {"tokenizer_hash", record.tokenizer_hash},
                 {"verified", verify ? Json(true) : Json()}};
  report.text = render_fields(report.json);
  report.json["layers"] = layers_json(layout);
  return report;
}

// Captures, and any other safetensors file.
Report inspect_tensors(const fs::path& path, const SafetensorsHeader& header, bool verify) {
  Report report;
  report.json = {{"kind", "safetensors"},
                 {"path", path.string()},
                 {"file_bytes", file_size(header)},
                 {"n_tensors", header.tensors.size()},
                 {"verified", verify ? Json(true) : Json()}};
  report.text = render_fields(report.json);
  report.json["metadata"] = header.metadata;
  Json tensors = Json::array();
  for (const TensorEntry& tensor : header.tensors) {
    tensors.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
    report.text += fmt::format("{} {} {}\n", escape_controls(tensor.name), tensor.dtype,
                               to_line(tensor.shape));
  }
  report.json["tensors"] = std::move(tensors);
  return report;
}

Result<Report> inspect_file(const fs::path& path, bool verify, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  const auto begins_with = [&](std::size_t offset, std::string_view magic) {
    return bytes.size() >= offset + magic.size() &&
           std::memcmp(bytes.data() + offset, magic.data(), magic.size()) == 0;
  };
  if (begins_with(0, "GGUF")) return inspect_gguf(path, verify);
  // Safetensors has no magic; its JSON header begins behind an 8-byte length.
  if (!begins_with(8, "{")) {
    return Error{
        ErrorCode::kCorrupt,
        fmt::format("inspecting {}: it is neither a GGUF (begins with 'GGUF') nor a memory "
                    "file or capture (safetensors)",
                    path.string())};
  }
  const auto header = parse_safetensors(bytes);
  const bool other = header.ok() && header->metadata.count(kMemoryMarker) == 0;
  if (other) return inspect_tensors(path, *header, verify);
  return inspect_memory(path, verify, console);
}

Result<Report> run(const InspectFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const fs::path path, find_input(flags.file, "models"));
  Result<Report> report = inspect_file(path, flags.verify, console);
  if (!flags.verify || report.ok()) return report;
  const ErrorCode code = report.error().code;
  const bool unusable = code == ErrorCode::kCorrupt || code == ErrorCode::kUnsupported ||
                        code == ErrorCode::kMismatch;
  if (unusable) return Error{ErrorCode::kVerification, report.error().message};
  return report;
}

}  // namespace

void add_inspect(CLI::App& parent, Selected& selected) {
  add_command<InspectFlags>(parent, selected, "inspect", "Show what is inside a file", declare,
                            run);
}

}  // namespace volvelle::cli
