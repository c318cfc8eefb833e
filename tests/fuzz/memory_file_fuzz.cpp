// The memory file reader on any bytes, with and without its checks (with them, mutated inputs end
// early and the code behind would never run). Whatever is accepted must be consistent enough to
// touch every row.
#include <memory>

#include "fuzz/container_mutator.hpp"
#include "fuzz/fuzz_check.hpp"
#include "memory/memory_file_reader.hpp"

namespace volvelle::fuzz {
namespace {

void touch_group(const OpenedMemory& memory, std::span<const std::byte> data, std::size_t group) {
  const RowBlock block = memory_format::row_planes(memory.header, memory.shape, group,
                                                   const_cast<std::byte*>(data.data()));
  require(block.layers.size() == memory.shape.layout.layers.size());
  require(block.capacity == static_cast<std::int64_t>(memory.row_positions[group].size()));
  volatile unsigned char sink = 0;  // keeps the reads
  for (std::size_t i = 0; i < block.layers.size(); ++i) {
    if (memory.shape.group_of_layer[i] != static_cast<int>(group)) continue;
    const auto heads = static_cast<std::size_t>(memory.shape.layout.layers[i].n_kv_heads);
    const RowBlock::LayerPlanes& planes = block.layers[i];
    sink = sink ^
           std::to_integer<unsigned char>(planes.k[0] ^ planes.k[heads * planes.k_head_stride - 1]);
    sink = sink ^
           std::to_integer<unsigned char>(planes.v[0] ^ planes.v[heads * planes.v_head_stride - 1]);
  }
}

void touch_rows(const OpenedMemory& memory, std::span<const std::byte> file) {
  const auto data = file.subspan(memory.header.data_offset);
  for (std::size_t group = 0; group < memory.row_positions.size(); ++group)
    touch_group(memory, data, group);
}

}  // namespace
}  // namespace volvelle::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned int seed) {
  return volvelle::fuzz::mutate_container(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace volvelle;
  const std::span<const std::byte> file = fuzz::as_bytes(data, size);
  for (const Integrity integrity : {Integrity::kVerify, Integrity::kIgnore}) {
    const auto memory = read_memory(file, integrity);
    if (!memory.ok()) {
      fuzz::require_one_line(memory.error());
      continue;
    }
    fuzz::touch_rows(*memory, file);
    fuzz::require(!memory_format::find_problem(memory->record, memory->row_positions).has_value());
  }
  return 0;
}
