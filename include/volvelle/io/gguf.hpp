// GGUF metadata and tensor directory, read and checked by us before the engine sees the file. Every
// count and size is checked against the length of the file before it is used. Cost: proportional to
// the header; tensor data is not read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "volvelle/base/result.hpp"

namespace volvelle {

/// Integers are widened to 64 bits, floats to double. Arrays keep their element kind; nested arrays
/// are refused.
using GgufValue = std::variant<std::int64_t, std::uint64_t, double, bool, std::string,
                               std::vector<std::int64_t>, std::vector<std::uint64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> shape;  // ggml order: fastest first
  std::uint32_t type = 0;            // ggml_type
  std::uint64_t offset = 0;          // in the file
  std::uint64_t bytes = 0;           // of the data, without padding
};

struct GgufFile {
  std::filesystem::path path;
  std::uint32_t version = 0;
  std::uint64_t file_bytes = 0;
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;

  std::optional<std::string> string(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;  // any integer type that fits
  std::optional<double> number(std::string_view key) const;         // any numeric type
};

/// Magic, version 2-3, counts against the file size, strings, array types, dims (1-4, non-zero, no
/// overflow), type ids, alignment, every tensor inside the file, no overlap, no duplicate names.
/// Reads only the header part.
Result<GgufFile> read_gguf(const std::filesystem::path& path);

/// Name ("q4_1") and row size of a ggml type id; nothing for unknown ids.
struct GgmlTypeInfo {
  std::string_view name;
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
};
std::optional<GgmlTypeInfo> ggml_type_info(std::uint32_t type) noexcept;

}  // namespace volvelle
