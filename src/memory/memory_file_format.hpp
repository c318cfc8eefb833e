// What memory files look like: names, order, metadata and rules of each format version. Writer and
// reader share this, and the reader accepts exactly the layout that the writer would have chosen.
// docs/memory_file.md describes the bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "volvelle/io/safetensors.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::memory_format {

inline constexpr std::uint64_t kAlignment = 64;
inline constexpr const char* kTokens = "tokens";
inline constexpr const char* kRanges = "ranges";
inline constexpr const char* kText = "text";
inline constexpr const char* kChecks = "checks";
std::string key_tensor(std::size_t layer);
std::string value_tensor(std::size_t layer);
std::string positions_tensor(std::size_t group);

/// Sizes of one layer's index; no KV heads: the layer has none.
struct IndexShape {
  std::uint64_t n_tiles = 0;
  std::uint64_t n_rows = 0;  // that the code was made from
  bool norms = false;
  Dither dither = Dither::kNone;
  std::uint64_t n_pairs = 0;  // of a block frame's rotation; 0: none
  bool half_split = false;
  std::uint64_t position_limit = 0;  // of codes that were adopted; 0: none
  std::vector<CodeWidths> keys;      // [n_kv_heads]
  std::vector<CodeWidths> values;    // [n_kv_heads]; all zero: values are not coded
};

/// The sizes that decide where everything lies.
struct Shape {
  int version = 2;  // 3 with an index
  std::uint64_t n_tokens = 0;
  std::vector<std::uint64_t> n_rows;  // [n_groups]
  std::uint64_t text_bytes = 0;
  StoreLayout layout;
  std::vector<int> group_of_layer;  // [n_layers]; -1: the layer stores nothing
  std::vector<IndexShape> index;    // [n_layers], or none
};

/// The whole header, checks included. Errors: sizes that overflow, metadata that is not UTF-8.
Result<SafetensorsHeader> make_header(const MemoryRecord& record, const Shape& shape);

/// Whether a file, and then its header, is a memory at all, damaged or not. The errors say so and
/// what to do.
Status check_kind(std::span<const std::byte> file);
Status check_kind(const SafetensorsHeader& header);

/// Which format version wrote this header: an error if it is newer than this program.
Status check_version(const SafetensorsHeader& header);

/// The record without tokens, ranges and text, and the sizes. The header equals make_header() of
/// both, or this fails.
struct Description {
  MemoryRecord record;
  Shape shape;
};
Result<Description> read_description(const SafetensorsHeader& header);

/// Fills tokens, ranges and text from the data section, and the row positions.
Status read_small_tensors(const SafetensorsHeader& header, std::span<const std::byte> data,
                          MemoryRecord& record, RowPositions& row_positions);

/// What is wrong with a record and its row positions, in words; nothing if all is well.
std::optional<std::string> find_problem(const MemoryRecord& record,
                                        const RowPositions& row_positions);

/// The planes of a group's layers inside `data`, the data section.
RowBlock row_planes(const SafetensorsHeader& header, const Shape& shape, std::size_t group,
                    std::byte* data);

/// Bytes of K and V rows, without filler.
std::uint64_t total_row_bytes(const Shape& shape) noexcept;

}  // namespace volvelle::memory_format
