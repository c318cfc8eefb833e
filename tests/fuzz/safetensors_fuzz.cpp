// parse_safetensors() on any bytes: an accepted header describes exactly the file that was given.
#include <string>

#include "fuzz/container_mutator.hpp"
#include "fuzz/fuzz_check.hpp"
#include "volvelle/io/safetensors.hpp"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned int seed) {
  return volvelle::fuzz::mutate_container(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace volvelle;
  const auto header = parse_safetensors(fuzz::as_bytes(data, size));
  if (!header.ok()) return fuzz::require_one_line(header.error()), 0;
  fuzz::require(file_size(*header) == size);
  std::uint64_t at = 0;
  for (const TensorEntry& entry : header->tensors) {
    fuzz::require(entry.begin == at && entry.end >= at && dtype_bytes(entry.dtype) > 0);
    at = entry.end;
  }

  // What was read can be laid out again, unless it uses a reserved name or fills 64 bits.
  std::vector<TensorEntry> entries;
  for (const TensorEntry& entry : header->tensors) {
    if (!entry.name.starts_with("_fill.")) entries.push_back(entry);
  }
  const auto again = layout_safetensors(header->metadata, std::move(entries), 64);
  if (!again.ok()) return fuzz::require_one_line(again.error()), 0;
  std::string file = serialize_header(*again);
  file.resize(file_size(*again));
  fuzz::require(parse_safetensors(std::as_bytes(std::span(file.data(), file.size()))).ok());
  return 0;
}
