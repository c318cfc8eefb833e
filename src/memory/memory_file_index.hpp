// The index of a saved memory (format 3): codes of the rows and how they were made.
//
//   metadata "index"        one word per layer:
//   n_tiles,n_rows,bound[,n_pairs,half,limit]:k8,k4,k2,v8,v4,v2:... with one
//                           group of widths per KV head (v: 0,0,0 where values are not coded);
//                           bound: 1 norms, 2 dither, 0 neither; n_pairs and half: rotation of a
//                           block frame, its angles first in .code; limit: of adopted codes; "-"
//                           for a layer without an index
//   layer.I.index.code      F32 [n]: for each KV head mean, encode, decode and step of the keys,
//                           then of the values (volvelle/index/row_code.hpp)
//   layer.I.index.tiles     U8 [n_tiles, bytes of a tile] (volvelle/index/code_index.hpp)
#pragma once

#include <string>
#include <vector>

#include "memory/memory_file_format.hpp"
#include "volvelle/memory/memory_index.hpp"

namespace volvelle::memory_format {

/// The sizes of the index of a memory; empty if it has none.
std::vector<IndexShape> index_shapes(const ContextMemory& memory);

std::string index_text(const std::vector<IndexShape>& index);
/// Errors say what is wrong with the metadata.
Status read_index_text(const std::string& text, Shape& shape);

std::string code_tensor(std::size_t layer);
std::string tiles_tensor(std::size_t layer);
/// Tensors of one layer's index.
std::vector<TensorEntry> index_tensors(const Shape& shape, std::size_t layer);

/// Writes the tensors of all layers into `data`, the data section.
void write_index(const SafetensorsHeader& header, const ContextMemory& memory, std::byte* data);
/// The index whose tensors lie in `data`; `owner` keeps it mapped.
Result<MemoryIndex> read_index(const SafetensorsHeader& header, const Shape& shape,
                               const MemorySpec& spec, const std::byte* data,
                               const std::shared_ptr<void>& owner);

}  // namespace volvelle::memory_format
