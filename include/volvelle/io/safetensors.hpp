// The safetensors container: 8-byte little-endian header length, JSON header, tensor data without
// gaps. Memory files and captures are such files, so Python opens them. Nothing in a header is
// believed before it is checked against the length of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "volvelle/base/result.hpp"

namespace volvelle {

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32", "F16", "U8", "I32", "I64", ...
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data section
  std::uint64_t end = 0;
};

/// Bytes of one element of a safetensors dtype; 0 for unknown names.
std::size_t dtype_bytes(std::string_view dtype) noexcept;

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::vector<TensorEntry> tensors;             // in data order
  std::uint64_t data_offset = 0;                // of the data section in the file

  const TensorEntry* find(std::string_view name) const noexcept;
};

/// Parses and checks: header length inside the file, JSON well-formed, known dtypes, shape x dtype
/// == end - begin without overflow, tensors contiguous and covering the data section exactly.
/// `file` is the whole file.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file);

/// Lays tensors out in the given order (begin and end are computed), the data section at a multiple
/// of `alignment`. Filler tensors
/// "_fill.N" (U8) are put in so that each tensor starts at a multiple of `alignment`.
Result<SafetensorsHeader> layout_safetensors(std::map<std::string, std::string> metadata,
                                             std::vector<TensorEntry> tensors,
                                             std::uint64_t alignment);
/// The first data_offset bytes of the file: length and padded JSON.
std::string serialize_header(const SafetensorsHeader& header);
std::uint64_t file_size(const SafetensorsHeader& header) noexcept;

/// One tensor to write: `data` holds exactly shape x dtype bytes.
struct TensorData {
  TensorEntry entry;
  std::span<const std::byte> data;
};
/// Writes a whole file atomically (captures, reports).
Status write_safetensors(const std::filesystem::path& path,
                         std::map<std::string, std::string> metadata,
                         std::span<const TensorData> tensors);

}  // namespace volvelle
