// Reading safetensors headers.
//   bytes 0..7 header length n (u64, little-endian); n bytes of JSON, padded with spaces; then the
//   data. JSON: {"__metadata__": {string: string}, name: {"dtype": string, "shape": [n...],
//   "data_offsets": [begin, end]}, ...}
// The JSON is read by events, not as a tree: only this one shape is accepted, so nesting can not
// grow, a duplicate is seen when it comes, and memory stays proportional to the header. After that
// every size is checked with overflow-checked arithmetic. Cost: one pass over the header, one sort
// of the tensors.
#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "volvelle/base/checked.hpp"
#include "volvelle/io/safetensors.hpp"

namespace volvelle {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied as they lie in the file");

constexpr std::uint64_t kMaxHeaderBytes =
    100'000'000;  // the limit of the format's reference reader
constexpr std::size_t kMaxDims = 32;
constexpr std::string_view kOperation = "reading safetensors: ";

Error corrupt(const std::string& what) {
  return {ErrorCode::kCorrupt, std::string(kOperation) + what};
}

struct RawTensor {
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

/// Event handler of the JSON parser. Returning false stops it; `problem` then says why.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, std::string> metadata;
  std::map<std::string, RawTensor> tensors;
  std::string problem;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is not an integer");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kNumbers) return unexpected("a number");
    if (numbers_->size() == kMaxDims)
      return fail("more than " + std::to_string(kMaxDims) + " numbers in " + where());
    numbers_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return metadata_[key_] = std::move(value), true;
    if (state_ != State::kTensor || field_ != "dtype") return unexpected("a string");
    tensor_->dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) return state_ = State::kRoot, true;
    if (state_ != State::kRoot) return unexpected("an object");
    state_ = key_ == "__metadata__" ? State::kMetadata : State::kTensor;
    return true;
  }

  bool key(string_t& value) override {
    if (state_ == State::kTensor) return tensor_key(std::move(value));
    const bool in_metadata = state_ == State::kMetadata;
    if (in_metadata ? metadata_.count(value) != 0
                    : tensors.count(value) != 0 || (value == "__metadata__" && has_metadata_)) {
      return fail("key " + io::quoted(value) + " occurs twice");
    }
    key_ = std::move(value);
    if (in_metadata) return true;
    if (key_ == "__metadata__") return has_metadata_ = true;
    tensor_ = &tensors[key_];
    return true;
  }

  bool end_object() override {
    if (state_ == State::kMetadata) metadata = metadata_;
    state_ = state_ == State::kRoot ? State::kEnd : State::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || (field_ != "shape" && field_ != "data_offsets"))
      return unexpected("an array");
    numbers_ = field_ == "shape" ? &tensor_->shape.emplace() : &tensor_->offsets.emplace();
    state_ = State::kNumbers;
    return true;
  }

  bool end_array() override { return state_ = State::kTensor, true; }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail("the header is not valid JSON near its byte " + std::to_string(position));
  }

 private:
  enum class State { kStart, kRoot, kMetadata, kTensor, kNumbers, kEnd };

  bool fail(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }
  std::string where() const { return key_.empty() ? "the header" : "entry " + io::quoted(key_); }
  bool unexpected(const char* what) {
    return fail("found " + std::string(what) + " where none belongs, in " + where());
  }

  bool tensor_key(std::string field) {
    const bool known = field == "dtype" || field == "shape" || field == "data_offsets";
    if (!known) return fail("unknown field " + io::quoted(field) + " in " + where());
    const bool again = field == "dtype"   ? tensor_->dtype.has_value()
                       : field == "shape" ? tensor_->shape.has_value()
                                          : tensor_->offsets.has_value();
    if (again) return fail("field " + io::quoted(field) + " occurs twice in " + where());
    field_ = std::move(field);
    return true;
  }

  State state_ = State::kStart;
  std::string key_;
  std::string field_;
  std::map<std::string, std::string> metadata_;
  bool has_metadata_ = false;
  RawTensor* tensor_ = nullptr;
  std::vector<std::uint64_t>* numbers_ = nullptr;
};

/// The JSON text, after checks of its length field.
Result<std::string_view> header_text(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return corrupt("expected an 8-byte header length, the file has " + std::to_string(file.size()) +
                   " bytes");
  }
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes) {
    return corrupt("the header length " + std::to_string(length) + " is over the limit of " +
                   std::to_string(kMaxHeaderBytes) + " bytes; this is not a safetensors file");
  }
  if (length > file.size() - sizeof(length)) {
    return corrupt("the header needs " + std::to_string(length) + " bytes, the file has " +
                   std::to_string(file.size() - sizeof(length)) +
                   " left; it is cut short or damaged");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data() + sizeof(length)),
                              static_cast<std::size_t>(length));
  if (!text.starts_with('{'))
    return corrupt("expected a header that begins with '{'; this is not a safetensors file");
  // The JSON parser takes a zero byte for the end of its input, and would let anything follow it.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    return corrupt("the header is not valid JSON near its byte " + std::to_string(zero));
  }
  return text;
}

Result<TensorEntry> to_entry(const std::string& name, RawTensor raw) {
  const std::string where = "tensor " + io::quoted(name) + ": ";
  if (!raw.dtype || !raw.shape || !raw.offsets)
    return corrupt(where + "expected dtype, shape and data_offsets");
  if (raw.offsets->size() != 2) return corrupt(where + "expected two data_offsets");
  TensorEntry entry{name, std::move(*raw.dtype), std::move(*raw.shape), (*raw.offsets)[0],
                    (*raw.offsets)[1]};
  const std::size_t element = dtype_bytes(entry.dtype);
  if (element == 0) return corrupt(where + "unknown dtype " + io::quoted(entry.dtype));
  std::optional<std::uint64_t> bytes = element;
  for (const std::uint64_t dim : entry.shape) {
    bytes = checked_mul(*bytes, dim);
    if (!bytes) return corrupt(where + "its shape overflows 64 bits");
  }
  if (entry.end < entry.begin || entry.end - entry.begin != *bytes) {
    return corrupt(where + "its shape needs " + std::to_string(*bytes) +
                   " bytes, its data_offsets are [" + std::to_string(entry.begin) + ", " +
                   std::to_string(entry.end) + ")");
  }
  return entry;
}

/// Tensors must follow each other without gap or overlap and fill the data section.
Status check_coverage(const std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::uint64_t expected = 0;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin != expected) {
      return corrupt("tensor " + io::quoted(entry.name) + ": expected to begin at " +
                     std::to_string(expected) + ", found " + std::to_string(entry.begin) +
                     "; tensors must not overlap or leave gaps");
    }
    expected = entry.end;
  }
  if (expected == data_bytes) return {};
  return corrupt("expected " + std::to_string(expected) + " bytes of data, found " +
                 std::to_string(data_bytes) +
                 "; the file is cut short, has been added to, or is damaged");
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::string_view text, header_text(file));
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) return corrupt(events.problem);

  SafetensorsHeader header;
  header.metadata = std::move(events.metadata);
  header.data_offset = sizeof(std::uint64_t) + text.size();
  header.tensors.reserve(events.tensors.size());
  for (auto& [name, raw] : events.tensors) {
    VOLVELLE_ASSIGN_OR_RETURN(TensorEntry entry, to_entry(name, std::move(raw)));
    header.tensors.push_back(std::move(entry));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  VOLVELLE_RETURN_IF_ERROR(check_coverage(header.tensors, file.size() - header.data_offset));
  return header;
}

}  // namespace volvelle
