// The GGUF reader on any bytes: every accepted tensor lies inside the file.
#include "fuzz/fuzz_check.hpp"
#include "io/gguf_parser.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace volvelle;
  const auto file = io::parse_gguf(fuzz::as_bytes(data, size), "fuzz.gguf");
  if (!file.ok()) return fuzz::require_one_line(file.error()), 0;
  for (const GgufTensor& tensor : file->tensors) {
    fuzz::require(tensor.offset <= size && tensor.bytes <= size - tensor.offset &&
                  tensor.bytes > 0);
    fuzz::require(!tensor.shape.empty() && tensor.shape.size() <= 4 &&
                  ggml_type_info(tensor.type).has_value());
  }
  for (const auto& [key, value] : file->metadata) {
    file->string(key);
    file->integer(key);
    file->number(key);
  }
  return 0;
}
