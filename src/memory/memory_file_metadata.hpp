// The metadata of memory files: a record and the sizes as strings, and back. Private to the module.
#pragma once

#include <map>
#include <string>

#include "memory/memory_file_format.hpp"

namespace volvelle::memory_format {

inline constexpr const char* kVersionKey = "volvelle_format";
inline constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 40;  // tokens, rows, bytes of text

std::map<std::string, std::string> to_metadata(const MemoryRecord& record, const Shape& shape);

/// The format version, a number that may be higher than this program knows.
Result<std::uint64_t> read_version(const SafetensorsHeader& header);

/// Fills the record's strings and numbers, and of the shape what the metadata of its version say:
/// not the layers of format 1, which are known from their tensors only.
Status read_metadata(const SafetensorsHeader& header, MemoryRecord& record, Shape& shape);

/// Of the shape what the metadata of format 3 say about the index.
Status read_index_shapes(const SafetensorsHeader& header, Shape& shape);

}  // namespace volvelle::memory_format
