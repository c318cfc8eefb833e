// Layout and rules of memory files, see the header.
// Small tensors come first, so that the blocks of checks that hold them are few and can be checked
// at open; then K and V of each layer; last the checks. Reading recomputes the layout from the
// sizes in the header and compares: nothing may differ. Cost: proportional to tokens and layers; no
// K or V row is touched.
#include "memory/memory_file_format.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "memory/memory_file_checks.hpp"
#include "memory/memory_file_index.hpp"
#include "memory/memory_file_metadata.hpp"

namespace volvelle::memory_format {
namespace {

// What the container's reader takes; a greater length field is text or another format.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

static_assert(sizeof(ByteRange) == 16 && std::is_trivially_copyable_v<ByteRange>,
              "I64 [n, 2] in the file");
static_assert(sizeof(Position) == 8 && std::is_trivially_copyable_v<Position>,
              "I64 [n] in the file");
static_assert(sizeof(TokenId) == 4, "I32 [n] in the file");

Error corrupt(const std::string& what) { return {ErrorCode::kCorrupt, what}; }

Error not_a_memory(const std::string& found) {
  return corrupt("this is not a memory file, it is " + found +
                 "; name a file that was saved as a memory");
}

/// How a row of `dim` elements looks in the container: block types as bytes.
TensorEntry plane(const std::string& name, ElementType type, std::uint64_t heads,
                  std::uint64_t rows, int dim) {
  const std::string_view type_name = to_string(type);
  const char* const dtype = type_name == "f32"    ? "F32"
                            : type_name == "f16"  ? "F16"
                            : type_name == "bf16" ? "BF16"
                                                  : nullptr;
  if (dtype != nullptr) return {name, dtype, {heads, rows, static_cast<std::uint64_t>(dim)}, 0, 0};
  return {name, "U8", {heads, rows, row_bytes(type, dim)}, 0, 0};
}

std::vector<TensorEntry> row_tensors(const Shape& shape) {
  std::vector<TensorEntry> entries;
  for (std::size_t i = 0; i < shape.layout.layers.size(); ++i) {
    if (shape.group_of_layer[i] < 0) continue;
    const LayerShape& layer = shape.layout.layers[i];
    const auto heads = static_cast<std::uint64_t>(layer.n_kv_heads);
    const std::uint64_t rows = shape.n_rows[static_cast<std::size_t>(shape.group_of_layer[i])];
    entries.push_back(plane(key_tensor(i), shape.layout.k_type, heads, rows, layer.head_dim_k));
    entries.push_back(plane(value_tensor(i), shape.layout.v_type, heads, rows, layer.head_dim_v));
    for (TensorEntry& entry : index_tensors(shape, i)) entries.push_back(std::move(entry));
  }
  return entries;
}

/// Heads and dimension of one plane from its tensor; the dtype and all else is compared with the
/// recomputed layout.
struct PlaneShape {
  int heads = 0;
  int dim = 0;
};
Result<PlaneShape> plane_shape(const TensorEntry& entry) {
  constexpr std::uint64_t kMax = std::numeric_limits<int>::max();
  const bool good = entry.shape.size() == 3 && entry.shape[0] >= 1 && entry.shape[0] <= kMax &&
                    entry.shape[2] >= 1 && entry.shape[2] <= kMax;
  if (!good)
    return corrupt("tensor " + io::quoted(entry.name) +
                   ": expected a shape [n_kv_heads, n_rows, head_dim]");
  return PlaneShape{static_cast<int>(entry.shape[0]), static_cast<int>(entry.shape[2])};
}

/// Number of elements of a one-dimensional tensor.
Result<std::uint64_t> length_of(const SafetensorsHeader& header, const std::string& name) {
  const TensorEntry* const entry = header.find(name);
  if (entry == nullptr || entry->shape.size() != 1 || entry->shape[0] > kMaxCount) {
    return corrupt("expected a tensor " + io::quoted(name) + " with one dimension");
  }
  return entry->shape[0];
}

/// The layers of format 1, which does not name them in its metadata.
Result<std::vector<LayerShape>> layer_shapes(const SafetensorsHeader& header) {
  std::map<std::string_view, const TensorEntry*> by_name;
  for (const TensorEntry& entry : header.tensors) by_name[entry.name] = &entry;
  std::vector<LayerShape> layers;
  for (;;) {
    const auto key = by_name.find(key_tensor(layers.size()));
    const auto value = by_name.find(value_tensor(layers.size()));
    if (key == by_name.end() || value == by_name.end()) break;
    VOLVELLE_ASSIGN_OR_RETURN(const PlaneShape k, plane_shape(*key->second));
    VOLVELLE_ASSIGN_OR_RETURN(const PlaneShape v, plane_shape(*value->second));
    if (k.heads != v.heads)
      return corrupt("layer " + std::to_string(layers.size()) + ": K and V differ in heads");
    layers.push_back({k.heads, k.dim, v.dim});
  }
  if (layers.empty()) return corrupt("expected tensors 'layer.0.k' and 'layer.0.v', found none");
  return layers;
}

Status compare(const SafetensorsHeader& found, const SafetensorsHeader& expected) {
  if (found.metadata != expected.metadata)
    return corrupt("the metadata has keys that this format does not have");
  if (found.tensors.size() != expected.tensors.size()) {
    return corrupt("expected " + std::to_string(expected.tensors.size()) + " tensors, found " +
                   std::to_string(found.tensors.size()));
  }
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    const TensorEntry& a = found.tensors[i];
    const TensorEntry& b = expected.tensors[i];
    if (a.name != b.name)
      return corrupt("expected tensor " + io::quoted(b.name) + ", found " + io::quoted(a.name));
    if (a.dtype != b.dtype || a.shape != b.shape || a.begin != b.begin || a.end != b.end) {
      return corrupt("tensor " + io::quoted(a.name) +
                     ": type, shape or place do not fit the metadata");
    }
  }
  if (found.data_offset == expected.data_offset) return {};
  return corrupt("expected the data at byte " + std::to_string(expected.data_offset) +
                 ", found it at " + std::to_string(found.data_offset));
}

template <class T>
void copy_out(const SafetensorsHeader& header, std::span<const std::byte> data, const char* name,
              std::vector<T>& out) {
  const TensorEntry& entry = *header.find(name);
  out.resize((entry.end - entry.begin) / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), data.data() + entry.begin, entry.end - entry.begin);
}

}  // namespace

std::string key_tensor(std::size_t layer) { return "layer." + std::to_string(layer) + ".k"; }
std::string value_tensor(std::size_t layer) { return "layer." + std::to_string(layer) + ".v"; }
std::string positions_tensor(std::size_t group) {
  return group == 0 ? "row_positions" : "row_positions." + std::to_string(group);
}

Result<SafetensorsHeader> make_header(const MemoryRecord& record, const Shape& shape) {
  std::vector<TensorEntry> entries{{kTokens, "I32", {shape.n_tokens}, 0, 0},
                                   {kRanges, "I64", {shape.n_tokens, 2}, 0, 0}};
  for (std::size_t group = 0; group < shape.n_rows.size(); ++group) {
    entries.push_back({positions_tensor(group), "I64", {shape.n_rows[group]}, 0, 0});
  }
  entries.push_back({kText, "U8", {shape.text_bytes}, 0, 0});
  for (TensorEntry& entry : row_tensors(shape)) entries.push_back(std::move(entry));
  // An empty tensor in the place of the checks shows where they begin, and so how many blocks come
  // before them.
  entries.push_back({kChecks, "U8", {0}, 0, 0});
  VOLVELLE_ASSIGN_OR_RETURN(const SafetensorsHeader draft,
                            layout_safetensors(to_metadata(record, shape), entries, kAlignment));
  entries.back().shape = {kCheckBytes * (1 + n_check_blocks(draft.tensors.back().begin))};
  return layout_safetensors(to_metadata(record, shape), std::move(entries), kAlignment);
}

Status check_kind(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  if (bytes.starts_with("GGUF")) return not_a_memory("a GGUF model");
  if (bytes.starts_with("PK\3\4")) return not_a_memory("a zip archive");
  if (bytes.size() <= sizeof(length)) {
    return not_a_memory(bytes.empty() ? "an empty file"
                                      : "a file of " + std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > 0 && length <= kMaxHeaderBytes && bytes[sizeof(length)] == '{') return {};
  return not_a_memory("a file that does not begin with a header length and '{'");
}

Status check_kind(const SafetensorsHeader& header) {
  if (header.metadata.count(kVersionKey) != 0) return {};
  return not_a_memory("a safetensors file without 'volvelle_format' in its metadata");
}

Status check_version(const SafetensorsHeader& header) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t version, read_version(header));
  constexpr std::uint64_t kKnown = kMemoryFormatVersion;
  if (version > kKnown) {
    return Error{ErrorCode::kUnsupported,
                 "format " + std::to_string(version) +
                     ", written by a newer version; this one reads formats up to " +
                     std::to_string(kKnown) + ", update it"};
  }
  if (version == 0) return corrupt("format version 0 does not exist");
  return {};
}

namespace {

/// Numbers of rows per group, and for format 1 the layers, from the tensors.
Status read_shape(const SafetensorsHeader& header, Shape& shape) {
  VOLVELLE_ASSIGN_OR_RETURN(shape.text_bytes, length_of(header, kText));
  if (shape.version < 2) {
    VOLVELLE_ASSIGN_OR_RETURN(shape.layout.layers, layer_shapes(header));
    shape.group_of_layer.assign(shape.layout.layers.size(), 0);
  }
  int n_groups = 0;
  for (const int group : shape.group_of_layer) {
    if (group > static_cast<int>(shape.group_of_layer.size()))
      return corrupt("metadata 'layers': no such group " + std::to_string(group));
    n_groups = std::max(n_groups, group + 1);
  }
  if (n_groups == 0) return corrupt("expected layers with keys and values, found none");
  for (int group = 0; group < n_groups; ++group) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t n_rows,
                              length_of(header, positions_tensor(static_cast<std::size_t>(group))));
    shape.n_rows.push_back(n_rows);
  }
  return {};
}

/// What is wrong with the positions of one group.
std::optional<std::string> find_position_problem(std::span<const Position> positions,
                                                 std::int64_t n_tokens) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : positions[i - 1].value() + 1;
    const std::int64_t position = positions[i].value();
    if (position >= least && position < n_tokens) continue;
    return "row " + std::to_string(i) + " is at position " + std::to_string(position) +
           ", expected " + std::to_string(least) + " to " + std::to_string(n_tokens - 1);
  }
  return std::nullopt;
}

std::optional<std::string> find_source_problem(const MemoryRecord& record) {
  if (record.kind != kDocumentMemory && record.kind != kConversationMemory &&
      record.kind != kCalibrationMemory)
    return "it is a memory of kind " + io::quoted(record.kind) + ", which is not known";
  const auto text_bytes = static_cast<std::int64_t>(record.text.size());
  std::int64_t done = 0;
  for (const TextSource& source : record.sources) {
    const bool inside = source.range.begin >= done && source.range.begin <= source.range.end &&
                        source.range.end <= text_bytes;
    if (!inside || source.name.find('\n') != std::string::npos)
      return "source " + io::quoted(source.name) + " is out of order or outside the text";
    done = source.range.end;
  }
  return std::nullopt;
}

}  // namespace

Result<Description> read_description(const SafetensorsHeader& header) {
  Description description;
  VOLVELLE_RETURN_IF_ERROR(read_metadata(header, description.record, description.shape));
  VOLVELLE_RETURN_IF_ERROR(read_shape(header, description.shape));
  VOLVELLE_RETURN_IF_ERROR(read_index_shapes(header, description.shape));  // needs numbers of rows
  const Result<SafetensorsHeader> expected = make_header(description.record, description.shape);
  if (!expected.ok()) return corrupt(expected.error().message);
  VOLVELLE_RETURN_IF_ERROR(compare(header, *expected));
  return description;
}

Status read_small_tensors(const SafetensorsHeader& header, std::span<const std::byte> data,
                          MemoryRecord& record, RowPositions& row_positions) {
  copy_out(header, data, kTokens, record.tokens);
  copy_out(header, data, kRanges, record.ranges);
  row_positions.clear();
  while (header.find(positions_tensor(row_positions.size())) != nullptr) {
    const std::string name = positions_tensor(row_positions.size());
    copy_out(header, data, name.c_str(), row_positions.emplace_back());
  }
  const TensorEntry& text = *header.find(kText);
  record.text.assign(reinterpret_cast<const char*>(data.data() + text.begin),
                     text.end - text.begin);
  const std::optional<std::string> problem = find_problem(record, row_positions);
  if (problem) return corrupt(*problem);
  return {};
}

std::optional<std::string> find_problem(const MemoryRecord& record,
                                        const RowPositions& row_positions) {
  const auto n = static_cast<std::int64_t>(record.tokens.size());
  const auto no_rows = [](const std::vector<Position>& positions) { return positions.empty(); };
  if (n == 0 || row_positions.empty() ||
      std::any_of(row_positions.begin(), row_positions.end(), no_rows)) {
    return "it holds no tokens or no rows; read a text first";
  }
  if (record.ranges.size() != record.tokens.size()) {
    return "expected one text range for each of " + std::to_string(n) + " tokens, found " +
           std::to_string(record.ranges.size());
  }
  if (record.text_begin_token < 0 || record.text_begin_token > n || record.chunk < 0) {
    return "text_begin_token " + std::to_string(record.text_begin_token) + " or chunk " +
           std::to_string(record.chunk) + " are out of range for " + std::to_string(n) + " tokens";
  }
  const auto text_bytes = static_cast<std::int64_t>(record.text.size());
  for (std::size_t i = 0; i < record.tokens.size(); ++i) {
    const ByteRange range = record.ranges[i];
    const bool inside = range.begin >= 0 && range.begin <= range.end && range.end <= text_bytes;
    if (record.tokens[i] < 0)
      return "token " + std::to_string(i) + " has the id " + std::to_string(record.tokens[i]);
    if (inside || range == ByteRange{}) continue;
    return "token " + std::to_string(i) + " claims bytes [" + std::to_string(range.begin) + ", " +
           std::to_string(range.end) + ") of a text of " + std::to_string(text_bytes);
  }
  if (const auto problem = find_source_problem(record)) return problem;
  for (const std::vector<Position>& positions : row_positions) {
    if (const auto problem = find_position_problem(positions, n)) return problem;
  }
  return std::nullopt;
}

RowBlock row_planes(const SafetensorsHeader& header, const Shape& shape, std::size_t group,
                    std::byte* data) {
  std::map<std::string_view, std::uint64_t> begin;
  for (const TensorEntry& entry : header.tensors) begin[entry.name] = entry.begin;
  RowBlock block;
  const std::uint64_t rows = shape.n_rows[group];
  block.capacity = static_cast<std::int64_t>(rows);
  block.anonymous = false;
  for (std::size_t i = 0; i < shape.layout.layers.size(); ++i) {
    if (shape.group_of_layer[i] != static_cast<int>(group)) {
      block.layers.emplace_back();
      continue;
    }
    const LayerShape& layer = shape.layout.layers[i];
    block.layers.push_back({data + begin.at(key_tensor(i)), data + begin.at(value_tensor(i)),
                            rows * row_bytes(shape.layout.k_type, layer.head_dim_k),
                            rows * row_bytes(shape.layout.v_type, layer.head_dim_v)});
  }
  return block;
}

std::uint64_t total_row_bytes(const Shape& shape) noexcept {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shape.layout.layers.size(); ++i) {
    if (shape.group_of_layer[i] < 0) continue;
    const LayerShape& layer = shape.layout.layers[i];
    total += shape.n_rows[static_cast<std::size_t>(shape.group_of_layer[i])] *
             static_cast<std::uint64_t>(layer.n_kv_heads) *
             (row_bytes(shape.layout.k_type, layer.head_dim_k) +
              row_bytes(shape.layout.v_type, layer.head_dim_v));
  }
  return total;
}

}  // namespace volvelle::memory_format
