// Writes the seed inputs of the fuzzers: small good files of each kind, made by the code that
// writers use or by hand.
//   fuzz_seeds FOLDER     makes FOLDER/NAME_fuzz/*
#include <cstdio>

#include "unit/file_support.hpp"
#include "unit/gguf_builder.hpp"
#include "volvelle/io/safetensors.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle {
namespace {

using std::filesystem::path;
namespace gguf = testing::gguf;

bool write_safetensors_seeds(const path& folder) {
  const std::string a(12, 'a'), b(16, 'b');
  const TensorData tensors[] = {{{"a", "F16", {2, 3}, 0, 0}, testing::as_bytes(a)},
                                {{"b", "I64", {2}, 0, 0}, testing::as_bytes(b)}};
  testing::write_file(folder / "empty", testing::le<std::uint64_t>(2) + "{}");
  return write_safetensors(folder / "two", {{"key", "value"}, {"other", "\"\xc3\xa9\n"}}, tensors)
      .ok();
}

void write_gguf_seeds(const path& folder) {
  gguf::Model model = gguf::small_model();
  testing::write_file(folder / "small", model.file());
  model.keys.push_back(gguf::key("general.alignment", gguf::kU32, testing::le<std::uint32_t>(32)));
  model.keys.push_back(gguf::key("s", gguf::kArray,
                                 gguf::array(gguf::kString, 2, gguf::text("x") + gguf::text("y"))));
  model.keys.push_back(
      gguf::key("b", gguf::kArray, gguf::array(gguf::kBool, 2, std::string("\1\0", 2))));
  model.keys.push_back(gguf::key("f", gguf::kArray, gguf::array(gguf::kF32, 1, testing::le(0.5f))));
  model.keys.push_back(gguf::key("d", gguf::kF64, testing::le(0.5)));
  model.version = 2;
  testing::write_file(folder / "keys", model.file());
  testing::write_file(folder / "bare", gguf::Model{}.file());
}

bool write_memory_seed(const path& file, std::int64_t n, const std::string& spec,
                       const StoreLayout& layout) {
  MemoryRecord record;
  record.spec = spec;
  record.text = "text of it";
  std::vector<Position> positions;
  for (std::int64_t i = 0; i < n; ++i) {
    record.tokens.push_back(static_cast<TokenId>(i));
    record.ranges.push_back(i == 0 ? ByteRange{} : ByteRange{i - 1, i});
    positions.emplace_back(i);
  }
  auto writer = MemoryFileWriter::create(file, record, layout, {positions});
  return writer.ok() && writer->finish().ok();
}

bool write_memory_seeds(const path& folder) {
  return write_memory_seed(folder / "one", 1, "full",
                           {{{1, 1, 1}}, ElementType::kF16, ElementType::kF16}) &&
         write_memory_seed(folder / "two", 5, "full+kv(k=f16,v=f32)",
                           {{{2, 3, 5}, {1, 8, 8}}, ElementType::kF16, ElementType::kF32});
}

}  // namespace
}  // namespace volvelle

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n"), 2;
  const std::filesystem::path folder = argv[1];
  for (const char* name : {"safetensors_fuzz", "gguf_fuzz", "memory_file_fuzz"})
    std::filesystem::create_directories(folder / name);
  volvelle::write_gguf_seeds(folder / "gguf_fuzz");
  const bool written = volvelle::write_safetensors_seeds(folder / "safetensors_fuzz") &&
                       volvelle::write_memory_seeds(folder / "memory_file_fuzz");
  return written ? 0 : 1;
}
