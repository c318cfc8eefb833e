// Strings to numbers and back. Every value has one canonical form, so that a header can be compared
// with the one that a writer would have made.
//
//   layers   one word per layer: n_kv_heads,head_dim_k,head_dim_v,window,group; "-" stores nothing
//   sources  one line per source: begin end name
#include "memory/memory_file_metadata.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <sstream>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "memory/memory_file_index.hpp"

namespace volvelle::memory_format {
namespace {

Error corrupt(const std::string& what) { return {ErrorCode::kCorrupt, what}; }

/// The text fields of a record, their metadata keys, and the format that introduced them.
struct TextField {
  const char* key;
  std::string MemoryRecord::*member;
  int since = 1;
};
constexpr std::array<TextField, 10> kTextFields{{
    {"spec", &MemoryRecord::spec},
    {"engine", &MemoryRecord::engine},
    {"model_path", &MemoryRecord::model_path},
    {"model_name", &MemoryRecord::model_name},
    {"model_fingerprint", &MemoryRecord::model_fingerprint},
    {"tokenizer_hash", &MemoryRecord::tokenizer_hash},
    {"rope", &MemoryRecord::rope},
    {"chat_format", &MemoryRecord::chat_format},
    {"template_hash", &MemoryRecord::template_hash},
    {"kind", &MemoryRecord::kind, 2},
}};

std::string layers_text(const Shape& shape) {
  std::string out;
  for (std::size_t i = 0; i < shape.layout.layers.size(); ++i) {
    const LayerShape& layer = shape.layout.layers[i];
    if (!out.empty()) out += ' ';
    if (shape.group_of_layer[i] < 0) {
      out += '-';
      continue;
    }
    out += std::to_string(layer.n_kv_heads) + ',' + std::to_string(layer.head_dim_k) + ',' +
           std::to_string(layer.head_dim_v) + ',' + std::to_string(layer.window) + ',' +
           std::to_string(shape.group_of_layer[i]);
  }
  return out;
}

std::string sources_text(const std::vector<TextSource>& sources) {
  std::string out;
  for (const TextSource& source : sources) {
    out += std::to_string(source.range.begin) + ' ' + std::to_string(source.range.end) + ' ' +
           source.name + '\n';
  }
  return out;
}

std::optional<std::uint64_t> parse_count(std::string_view text, std::uint64_t most) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || number > most || text != std::to_string(number)) return std::nullopt;
  return number;
}

Result<std::string> text_of(const SafetensorsHeader& header, const std::string& key) {
  const auto found = header.metadata.find(key);
  if (found == header.metadata.end()) return corrupt("metadata " + io::quoted(key) + " is missing");
  return found->second;
}

/// A whole number in [0, kMaxCount], written the one canonical way.
Result<std::uint64_t> count_of(const SafetensorsHeader& header, const std::string& key) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::string text, text_of(header, key));
  if (const auto number = parse_count(text, kMaxCount)) return *number;
  return corrupt("metadata " + io::quoted(key) + ": expected a whole number, found " +
                 io::quoted(text));
}

Result<ElementType> type_of(const SafetensorsHeader& header, const std::string& key) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::string text, text_of(header, key));
  const std::optional<ElementType> type = parse_element_type(text);
  if (!type)
    return corrupt("metadata " + io::quoted(key) + ": unknown element type " + io::quoted(text));
  return *type;
}

/// "3,64,64,0,0" into a layer and its group.
bool read_layer(const std::string& word, LayerShape& layer, int& group) {
  constexpr std::uint64_t kMax = std::numeric_limits<int>::max();
  std::array<std::uint64_t, 5> numbers{};
  std::string_view rest = word;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t comma = rest.find(',');
    if ((comma == std::string_view::npos) != (i + 1 == numbers.size())) return false;
    const auto number = parse_count(rest.substr(0, comma), i == 3 ? kMaxCount : kMax);
    if (!number) return false;
    numbers[i] = *number;
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  layer = {static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), static_cast<int>(numbers[2]),
           static_cast<std::int64_t>(numbers[3])};
  group = static_cast<int>(numbers[4]);
  return layer.n_kv_heads >= 1 && layer.head_dim_k >= 1 && layer.head_dim_v >= 1;
}

Status read_layers(const SafetensorsHeader& header, Shape& shape) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::string text, text_of(header, "layers"));
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    LayerShape layer;
    int group = -1;
    if (word != "-" && !read_layer(word, layer, group))
      return corrupt("metadata 'layers': unexpected " + io::quoted(word));
    shape.layout.layers.push_back(layer);
    shape.group_of_layer.push_back(group);
  }
  return {};
}

Status read_sources(const SafetensorsHeader& header, std::vector<TextSource>& sources) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::string text, text_of(header, "sources"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(' ');
    const std::size_t second = first == std::string::npos ? first : line.find(' ', first + 1);
    if (second == std::string::npos)
      return corrupt("metadata 'sources': unexpected " + io::quoted(line));
    const auto begin = parse_count(std::string_view(line).substr(0, first), kMaxCount);
    const auto end =
        parse_count(std::string_view(line).substr(first + 1, second - first - 1), kMaxCount);
    if (!begin || !end) return corrupt("metadata 'sources': unexpected " + io::quoted(line));
    sources.push_back({line.substr(second + 1), ByteRange{static_cast<std::int64_t>(*begin),
                                                          static_cast<std::int64_t>(*end)}});
  }
  return {};
}

}  // namespace

std::map<std::string, std::string> to_metadata(const MemoryRecord& record, const Shape& shape) {
  std::map<std::string, std::string> metadata;
  for (const TextField& field : kTextFields) {
    if (shape.version >= field.since) metadata[field.key] = record.*field.member;
  }
  metadata[kVersionKey] = std::to_string(shape.version);
  metadata["n_tokens"] = std::to_string(shape.n_tokens);
  metadata["chunk"] = std::to_string(record.chunk);
  metadata["text_begin_token"] = std::to_string(record.text_begin_token);
  metadata["k_type"] = to_string(shape.layout.k_type);
  metadata["v_type"] = to_string(shape.layout.v_type);
  if (shape.version < 2) return metadata;
  metadata["layers"] = layers_text(shape);
  metadata["sources"] = sources_text(record.sources);
  if (shape.version >= 3) metadata["index"] = index_text(shape.index);
  return metadata;
}

Result<std::uint64_t> read_version(const SafetensorsHeader& header) {
  return count_of(header, kVersionKey);
}

Status read_metadata(const SafetensorsHeader& header, MemoryRecord& record, Shape& shape) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t version, read_version(header));
  shape.version = static_cast<int>(version);
  for (const TextField& field : kTextFields) {
    if (shape.version < field.since) continue;
    VOLVELLE_ASSIGN_OR_RETURN(record.*field.member, text_of(header, field.key));
  }
  VOLVELLE_ASSIGN_OR_RETURN(shape.n_tokens, count_of(header, "n_tokens"));
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t chunk, count_of(header, "chunk"));
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t text_begin, count_of(header, "text_begin_token"));
  record.chunk = static_cast<std::int64_t>(chunk);
  record.text_begin_token = static_cast<std::int64_t>(text_begin);
  VOLVELLE_ASSIGN_OR_RETURN(shape.layout.k_type, type_of(header, "k_type"));
  VOLVELLE_ASSIGN_OR_RETURN(shape.layout.v_type, type_of(header, "v_type"));
  if (shape.version < 2) return {};
  VOLVELLE_RETURN_IF_ERROR(read_layers(header, shape));
  return read_sources(header, record.sources);
}

Status read_index_shapes(const SafetensorsHeader& header, Shape& shape) {
  if (shape.version < 3) return {};
  VOLVELLE_ASSIGN_OR_RETURN(const std::string text, text_of(header, "index"));
  return read_index_text(text, shape);
}

}  // namespace volvelle::memory_format
