// Laying out and writing safetensors files, see safetensors_parser.cpp for the format.
// Invariant of every header made here: the data section and each tensor start at a multiple of the
// alignment. The JSON is padded with spaces for the former; for the latter, gaps are explicit U8
// tensors "_fill.N", since the format allows no holes. Cost: one pass over the entries;
// write_safetensors copies the data once, into the mapping of the new file.
#include "volvelle/io/safetensors.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "volvelle/base/checked.hpp"
#include "volvelle/io/atomic_file.hpp"

namespace volvelle {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kWriteAlignment = 64;
constexpr std::string_view kFillPrefix = "_fill.";
constexpr std::string_view kOperation = "laying out safetensors: ";

Error invalid(const std::string& what) {
  return {ErrorCode::kInvalidArgument, std::string(kOperation) + what};
}

/// JSON string literal; nothing if `text` is not UTF-8.
std::optional<std::string> json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return std::nullopt;
  }
}

std::string require_json_string(const std::string& text) {
  std::optional<std::string> literal = json_string(text);
  if (!literal)
    throw std::logic_error("serialize_header() of a header that layout_safetensors() did not make");
  return *std::move(literal);
}

std::string to_json(const SafetensorsHeader& header) {
  std::string json = "{\"__metadata__\":{";
  bool first = true;
  for (const auto& [key, value] : header.metadata) {
    if (!std::exchange(first, false)) json += ',';
    json.append(require_json_string(key)).append(":").append(require_json_string(value));
  }
  json += '}';
  for (const TensorEntry& entry : header.tensors) {
    json.append(",").append(require_json_string(entry.name));
    json.append(":{\"dtype\":").append(require_json_string(entry.dtype)).append(",\"shape\":[");
    first = true;
    for (const std::uint64_t dim : entry.shape) {
      if (!std::exchange(first, false)) json += ',';
      json += std::to_string(dim);
    }
    json.append("],\"data_offsets\":[").append(std::to_string(entry.begin));
    json.append(",").append(std::to_string(entry.end)).append("]}");
  }
  return json += '}';
}

std::optional<std::uint64_t> tensor_bytes(const TensorEntry& entry) {
  std::optional<std::uint64_t> bytes = dtype_bytes(entry.dtype);
  for (const std::uint64_t dim : entry.shape) {
    if (bytes) bytes = checked_mul(*bytes, dim);
  }
  return bytes;
}

Status check_names(const std::map<std::string, std::string>& metadata,
                   const std::vector<TensorEntry>& tensors) {
  for (const auto& [key, value] : metadata) {
    if (!json_string(key) || !json_string(value)) {
      return invalid("metadata " + io::quoted(key) + ": expected UTF-8, found " +
                     io::quoted(value));
    }
  }
  std::set<std::string_view> names;
  for (const TensorEntry& entry : tensors) {
    const std::string where = "tensor " + io::quoted(entry.name) + ": ";
    if (!json_string(entry.name)) return invalid(where + "expected a UTF-8 name");
    if (entry.name == "__metadata__" || entry.name.starts_with(kFillPrefix))
      return invalid(where + "the name is reserved");
    if (!names.insert(entry.name).second) return invalid(where + "the name occurs twice");
    if (dtype_bytes(entry.dtype) == 0)
      return invalid(where + "unknown dtype " + io::quoted(entry.dtype));
  }
  return {};
}

}  // namespace

std::size_t dtype_bytes(std::string_view dtype) noexcept {
  struct Size {
    std::string_view dtype;
    std::size_t bytes;
  };
  static constexpr std::array<Size, 15> kSizes{{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"F8_E5M2", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E8M0", 1},
                                                {"I16", 2},
                                                {"U16", 2},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"I32", 4},
                                                {"U32", 4},
                                                {"F32", 4},
                                                {"I64", 8},
                                                {"U64", 8}}};
  for (const Size& size : kSizes) {
    if (size.dtype == dtype) return size.bytes;
  }
  return dtype == "F64" ? 8 : 0;
}

const TensorEntry* SafetensorsHeader::find(std::string_view name) const noexcept {
  for (const TensorEntry& entry : tensors) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Result<SafetensorsHeader> layout_safetensors(std::map<std::string, std::string> metadata,
                                             std::vector<TensorEntry> tensors,
                                             std::uint64_t alignment) {
  if (!std::has_single_bit(alignment)) {
    return invalid("expected an alignment that is a power of two, found " +
                   std::to_string(alignment));
  }
  VOLVELLE_RETURN_IF_ERROR(check_names(metadata, tensors));
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  std::uint64_t at = 0;
  std::uint64_t n_fills = 0;
  for (TensorEntry& entry : tensors) {
    const std::uint64_t fill = (alignment - at % alignment) % alignment;
    const std::optional<std::uint64_t> bytes = tensor_bytes(entry);
    const std::optional<std::uint64_t> begin = checked_add(at, fill);
    const std::optional<std::uint64_t> end =
        bytes && begin ? checked_add(*begin, *bytes) : std::nullopt;
    if (!end) return invalid("tensor " + io::quoted(entry.name) + ": its shape overflows 64 bits");
    if (fill != 0) {
      header.tensors.push_back(
          {std::string(kFillPrefix) + std::to_string(n_fills++), "U8", {fill}, at, *begin});
    }
    entry.begin = *begin;
    entry.end = at = *end;
    header.tensors.push_back(std::move(entry));
  }
  const std::uint64_t unpadded = kLengthBytes + to_json(header).size();
  header.data_offset = (unpadded + alignment - 1) / alignment * alignment;
  if (!checked_add(header.data_offset, at)) return invalid("the file's size overflows 64 bits");
  return header;
}

std::string serialize_header(const SafetensorsHeader& header) {
  std::string json = to_json(header);
  if (header.data_offset < kLengthBytes + json.size()) {
    throw std::logic_error("serialize_header() of a header that layout_safetensors() did not make");
  }
  json.resize(static_cast<std::size_t>(header.data_offset - kLengthBytes), ' ');
  const std::uint64_t length = json.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out += json;
}

std::uint64_t file_size(const SafetensorsHeader& header) noexcept {
  return header.data_offset + (header.tensors.empty() ? 0 : header.tensors.back().end);
}

Status write_safetensors(const std::filesystem::path& path,
                         std::map<std::string, std::string> metadata,
                         std::span<const TensorData> tensors) {
  std::vector<TensorEntry> entries;
  for (const TensorData& tensor : tensors) entries.push_back(tensor.entry);
  VOLVELLE_ASSIGN_OR_RETURN(
      const SafetensorsHeader header,
      layout_safetensors(std::move(metadata), std::move(entries), kWriteAlignment));
  for (const TensorData& tensor : tensors) {
    const TensorEntry& entry = *header.find(tensor.entry.name);
    if (entry.end - entry.begin == tensor.data.size()) continue;
    return invalid("tensor " + io::quoted(entry.name) + ": its shape needs " +
                   std::to_string(entry.end - entry.begin) + " bytes, its data has " +
                   std::to_string(tensor.data.size()));
  }
  VOLVELLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path, file_size(header)));
  const std::span<std::byte> bytes =
      file.bytes();  // fresh pages read as zero, so filler needs no writing
  const std::string head = serialize_header(header);
  std::memcpy(bytes.data(), head.data(), head.size());
  for (const TensorData& tensor : tensors) {
    if (tensor.data.empty()) continue;
    const std::uint64_t begin = header.data_offset + header.find(tensor.entry.name)->begin;
    std::memcpy(bytes.data() + begin, tensor.data.data(), tensor.data.size());
  }
  return file.commit();
}

}  // namespace volvelle
