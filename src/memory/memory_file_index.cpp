// Sizes to strings and back, and copying of codes. Everything that decides where bytes lie is in
// the metadata, so a reader recomputes the layout before it looks at any tensor.
#include "memory/memory_file_index.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <sstream>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "memory/memory_file_metadata.hpp"

namespace volvelle::memory_format {
namespace {

// What tiles hold beside codes.
constexpr std::uint64_t kNoBound = 0;
constexpr std::uint64_t kNorms = 1;
constexpr std::uint64_t kDither = 2;

Error corrupt(const std::string& what) {
  return {ErrorCode::kCorrupt, "metadata 'index': " + what};
}

/// Floats of one side's code.
std::uint64_t code_floats(const CodeWidths& widths, int dim) {
  RowCode code;
  code.widths = widths;
  const auto total = static_cast<std::uint64_t>(widths.total());
  const auto d = static_cast<std::uint64_t>(dim);
  return d + d * static_cast<std::uint64_t>(code.stride()) + total * d + total;
}

std::uint64_t layer_floats(const IndexShape& index, const LayerShape& layer) {
  std::uint64_t floats = index.n_pairs;
  for (std::size_t h = 0; h < index.keys.size(); ++h) {
    floats += code_floats(index.keys[h], layer.head_dim_k);
    if (index.values[h].total() > 0) floats += code_floats(index.values[h], layer.head_dim_v);
  }
  return floats;
}

/// A LayerCode with the right sizes and nothing in it, for the layout of its tiles.
LayerCode empty_code(const IndexShape& index, const LayerShape& layer) {
  LayerCode code;
  code.norms = index.norms;
  code.dither = index.dither;
  if (index.n_pairs > 0) {
    code.frame.block = BlockFrame::kPositions;
    code.frame.half_split = index.half_split;
    code.frame.angles.resize(index.n_pairs);
  }
  code.n_rows = static_cast<std::int64_t>(index.n_rows);
  for (std::size_t h = 0; h < index.keys.size(); ++h) {
    RowCode& keys = code.keys.emplace_back();
    keys.dim = layer.head_dim_k;
    keys.widths = index.keys[h];
    if (index.values[h].total() == 0) continue;
    RowCode& values = code.values.emplace_back();
    values.dim = layer.head_dim_v;
    values.widths = index.values[h];
  }
  return code;
}

template <class Visit>
void visit_floats(RowCode& code, Visit visit) {
  const auto dim = static_cast<std::size_t>(code.dim);
  const auto total = static_cast<std::size_t>(code.widths.total());
  visit(code.mean, dim);
  visit(code.encode, dim * static_cast<std::size_t>(code.stride()));
  visit(code.decode, total * dim);
  visit(code.step, total);
}

bool parse_numbers(std::string_view text, std::span<std::uint64_t> numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t comma = text.find(',');
    if ((comma == std::string_view::npos) != (i + 1 == numbers.size())) return false;
    const std::string_view word = text.substr(0, comma);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), numbers[i]);
    if (error != std::errc() || end != word.data() + word.size() || numbers[i] > kMaxCount ||
        word != std::to_string(numbers[i])) {
      return false;
    }
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return true;
}

bool plausible(const CodeWidths& widths, int unit, int dim) {
  if (dim > kMaxHeadDim) return false;
  const int most = (dim + unit - 1) / unit * unit;
  return widths.n8 % unit == 0 && widths.n4 % unit == 0 && widths.n2 % unit == 0 &&
         widths.total() <= most;
}

bool read_head(std::string_view text, const LayerShape& layer, IndexShape& index) {
  std::array<std::uint64_t, 6> n{};
  if (!parse_numbers(text, n)) return false;
  for (const std::uint64_t x : n) {
    if (x > 2 * static_cast<std::uint64_t>(kMaxHeadDim)) return false;
  }
  const auto width = [&](std::size_t i) { return static_cast<int>(n[i]); };
  index.keys.push_back({width(0), width(1), width(2)});
  index.values.push_back({width(3), width(4), width(5)});
  return index.keys.back().total() > 0 &&
         plausible(index.keys.back(), kKeyCodeUnit, layer.head_dim_k) &&
         plausible(index.values.back(), kValueCodeUnit, layer.head_dim_v);
}

bool read_layer(const std::string& word, const LayerShape& layer, std::uint64_t n_rows,
                IndexShape& index) {
  std::istringstream parts(word);
  std::string part;
  std::array<std::uint64_t, 6> sizes{};  // the last three only if one of them is not 0
  if (!std::getline(parts, part, ':')) return false;
  const auto n_sizes = static_cast<std::size_t>(std::count(part.begin(), part.end(), ',') + 1);
  if ((n_sizes != 3 && n_sizes != 6) || !parse_numbers(part, std::span(sizes).first(n_sizes)))
    return false;
  if (n_sizes == 6 &&
      (sizes[4] > 1 || (sizes[3] == 0 && sizes[4] != 0) || sizes[3] + sizes[5] == 0))
    return false;
  index.n_tiles = sizes[0];
  index.n_rows = sizes[1];
  index.n_pairs = sizes[3];
  index.half_split = sizes[4] == 1;
  index.position_limit = sizes[5];
  index.norms = sizes[2] == kNorms;
  index.dither = sizes[2] == kDither ? Dither::kSubtractive : Dither::kNone;
  while (std::getline(parts, part, ':')) {
    if (!read_head(part, layer, index)) return false;
  }
  const bool coded = !index.values.empty() && index.values.front().total() > 0;
  for (const CodeWidths& values : index.values) {
    if ((values.total() > 0) != coded) return false;
  }
  return sizes[2] <= kDither && 2 * sizes[3] <= static_cast<std::uint64_t>(layer.head_dim_k) &&
         std::ssize(index.keys) == layer.n_kv_heads && layer.window == 0 && index.n_rows >= 1 &&
         index.n_tiles <= n_rows / static_cast<std::uint64_t>(kCodeTile);
}

}  // namespace

std::vector<IndexShape> index_shapes(const ContextMemory& memory) {
  const MemoryIndex* const index = memory.index();
  if (index == nullptr || !index->ready()) return {};
  std::vector<IndexShape> shapes(memory.layout().layers.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const CodeIndex& layer = index->layer(LayerIndex(static_cast<std::int64_t>(i)));
    if (!layer.ready()) continue;
    shapes[i].n_tiles = static_cast<std::uint64_t>(layer.n_tiles());
    shapes[i].n_rows = static_cast<std::uint64_t>(layer.code().n_rows);
    shapes[i].norms = layer.code().norms;
    shapes[i].dither = layer.code().dither;
    shapes[i].n_pairs = layer.code().frame.angles.size();
    shapes[i].half_split = layer.code().frame.half_split;
    shapes[i].position_limit = static_cast<std::uint64_t>(index->position_limit());
    for (std::size_t h = 0; h < layer.code().keys.size(); ++h) {
      shapes[i].keys.push_back(layer.code().keys[h].widths);
      shapes[i].values.push_back(layer.code().values.empty() ? CodeWidths{}
                                                             : layer.code().values[h].widths);
    }
  }
  return shapes;
}

std::string index_text(const std::vector<IndexShape>& index) {
  std::string out;
  const auto append = [&](const CodeWidths& w) {
    out += std::to_string(w.n8) + ',' + std::to_string(w.n4) + ',' + std::to_string(w.n2);
  };
  for (const IndexShape& layer : index) {
    if (!out.empty()) out += ' ';
    if (layer.keys.empty()) {
      out += '-';
      continue;
    }
    out += std::to_string(layer.n_tiles) + ',' + std::to_string(layer.n_rows) + ',' +
           std::to_string(layer.norms                     ? kNorms
                          : layer.dither != Dither::kNone ? kDither
                                                          : kNoBound);
    if (layer.n_pairs > 0 || layer.position_limit > 0) {
      out += ',' + std::to_string(layer.n_pairs) + (layer.half_split ? ",1," : ",0,") +
             std::to_string(layer.position_limit);
    }
    for (std::size_t h = 0; h < layer.keys.size(); ++h) {
      out += ':';
      append(layer.keys[h]);
      out += ',';
      append(layer.values[h]);
    }
  }
  return out;
}

Status read_index_text(const std::string& text, Shape& shape) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t i = shape.index.size();
    if (i >= shape.layout.layers.size()) return corrupt("more layers than the memory has");
    IndexShape index;
    if (word != "-") {
      if (shape.group_of_layer[i] < 0 || shape.group_of_layer[i] >= std::ssize(shape.n_rows) ||
          !read_layer(word, shape.layout.layers[i],
                      shape.n_rows[static_cast<std::size_t>(shape.group_of_layer[i])], index)) {
        return corrupt("unexpected " + io::quoted(word));
      }
    }
    shape.index.push_back(std::move(index));
  }
  if (shape.index.size() == shape.layout.layers.size()) return {};
  return corrupt("expected " + std::to_string(shape.layout.layers.size()) + " layers, found " +
                 std::to_string(shape.index.size()));
}

std::string code_tensor(std::size_t layer) {
  return "layer." + std::to_string(layer) + ".index.code";
}
std::string tiles_tensor(std::size_t layer) {
  return "layer." + std::to_string(layer) + ".index.tiles";
}

std::vector<TensorEntry> index_tensors(const Shape& shape, std::size_t layer) {
  if (shape.index.empty() || shape.index[layer].keys.empty()) return {};
  const IndexShape& index = shape.index[layer];
  const std::uint64_t tile = empty_code(index, shape.layout.layers[layer]).tile_bytes();
  return {{code_tensor(layer), "F32", {layer_floats(index, shape.layout.layers[layer])}, 0, 0},
          {tiles_tensor(layer), "U8", {index.n_tiles, tile}, 0, 0}};
}

void write_index(const SafetensorsHeader& header, const ContextMemory& memory, std::byte* data) {
  const std::size_t n_layers = memory.layout().layers.size();
  for (std::size_t i = 0; i < n_layers; ++i) {
    const CodeIndex& index = memory.index()->layer(LayerIndex(static_cast<std::int64_t>(i)));
    if (!index.ready()) continue;
    std::byte* at = data + header.find(code_tensor(i))->begin;
    const auto copy = [&](const std::vector<float>& values, std::size_t n) {
      if (n > 0) std::memcpy(at, values.data(), n * sizeof(float));
      at += n * sizeof(float);
    };
    LayerCode code = index.code();
    copy(code.frame.angles, code.frame.angles.size());
    for (std::size_t h = 0; h < code.keys.size(); ++h) {
      visit_floats(code.keys[h], copy);
      if (!code.values.empty()) visit_floats(code.values[h], copy);
    }
    std::byte* tile = data + header.find(tiles_tensor(i))->begin;
    for (std::int64_t t = 0; t < index.n_tiles(); ++t, tile += code.tile_bytes())
      std::memcpy(tile, index.tile(t), code.tile_bytes());
  }
}

Result<MemoryIndex> read_index(const SafetensorsHeader& header, const Shape& shape,
                               const MemorySpec& spec, const std::byte* data,
                               const std::shared_ptr<void>& owner) {
  if (!spec.topk) return corrupt("the spec has no index");
  VOLVELLE_ASSIGN_OR_RETURN(IndexPlan plan, index_plan(spec));
  MemoryIndex index(plan, shape.layout);
  std::int64_t made_at = 1;
  std::int64_t position_limit = 0;
  for (std::size_t i = 0; i < shape.index.size(); ++i) {
    const LayerIndex layer(static_cast<std::int64_t>(i));
    const bool present = !shape.index[i].keys.empty();
    if (present != index.serves(layer))
      return corrupt("layer " + std::to_string(i) + " does not go with the spec");
    if (!present) continue;
    LayerCode code = empty_code(shape.index[i], shape.layout.layers[i]);
    if ((code.frame.block > 0) != plan.block_anchored || code.norms != plan.options.norms ||
        code.dither != plan.options.dither || code.values.empty() == plan.policy.coded_tail)
      return corrupt("the codes of layer " + std::to_string(i) + " do not go with the spec");
    const std::byte* at = data + header.find(code_tensor(i))->begin;
    bool sound = true;
    const auto copy = [&](std::vector<float>& values, std::size_t n) {
      values.resize(n);
      if (n > 0) std::memcpy(values.data(), at, n * sizeof(float));
      at += n * sizeof(float);
      for (const float x : values) sound = sound && std::isfinite(x);
    };
    copy(code.frame.angles, code.frame.angles.size());
    const auto read_code = [&](RowCode& row_code) {
      visit_floats(row_code, copy);
      for (const float step : row_code.step) sound = sound && step > 0.0f;
    };
    for (std::size_t h = 0; h < code.keys.size(); ++h) {
      read_code(code.keys[h]);
      if (!code.values.empty()) read_code(code.values[h]);
    }
    if (!sound)
      return corrupt("the code of layer " + std::to_string(i) + " holds numbers that no code has");
    made_at = std::max(made_at, std::min(code.n_rows, static_cast<std::int64_t>(shape.n_tokens)));
    const std::size_t tile_bytes = code.tile_bytes();
    CodeIndex restored(std::make_shared<LayerCode>(std::move(code)));
    const std::byte* tile = data + header.find(tiles_tensor(i))->begin;
    for (std::uint64_t t = 0; t < shape.index[i].n_tiles; ++t, tile += tile_bytes)
      restored.adopt_tile(std::shared_ptr<const std::byte>(owner, tile));
    index.restore_layer(layer, std::move(restored));
    position_limit = static_cast<std::int64_t>(shape.index[i].position_limit);
  }
  index.finish_restore(made_at, position_limit);
  return index;
}

}  // namespace volvelle::memory_format
