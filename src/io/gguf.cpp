// Reading a GGUF file from disk, and typed access to its metadata.
// A missing key and a key of another type look the same to the accessors: both mean that there is
// no such number or string. Cost: read_gguf maps the file and touches the header part only.
#include "volvelle/io/gguf.hpp"

#include <limits>

#include "base/result_macros.hpp"
#include "io/gguf_parser.hpp"
#include "volvelle/io/mapped_file.hpp"

namespace volvelle {
namespace {

const GgufValue* find(const GgufFile& file, std::string_view key) {
  const auto found = file.metadata.find(std::string(key));
  return found == file.metadata.end() ? nullptr : &found->second;
}

}  // namespace

Result<GgufFile> read_gguf(const std::filesystem::path& path) {
  VOLVELLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return io::parse_gguf(file.bytes(), path);
}

std::optional<std::string> GgufFile::string(std::string_view key) const {
  const GgufValue* const value = find(*this, key);
  const auto* const text = value != nullptr ? std::get_if<std::string>(value) : nullptr;
  return text != nullptr ? std::optional(*text) : std::nullopt;
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* const value = find(*this, key);
  if (value == nullptr) return std::nullopt;
  if (const auto* const i = std::get_if<std::int64_t>(value)) return *i;
  const auto* const u = std::get_if<std::uint64_t>(value);
  if (u == nullptr || *u > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    return std::nullopt;
  return static_cast<std::int64_t>(*u);
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* const value = find(*this, key);
  if (value == nullptr) return std::nullopt;
  if (const auto* const d = std::get_if<double>(value)) return *d;
  if (const auto* const i = std::get_if<std::int64_t>(value)) return static_cast<double>(*i);
  if (const auto* const u = std::get_if<std::uint64_t>(value)) return static_cast<double>(*u);
  return std::nullopt;
}

}  // namespace volvelle
