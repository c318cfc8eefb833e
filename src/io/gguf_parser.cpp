// GGUF, versions 2 and 3, little-endian: magic, version u32, n_tensors u64, n_keys u64; then keys
// {string, type u32, value}; then tensors {string, n_dims u32, dims u64[], type u32, offset u64};
// then, at the next multiple of general.alignment, the data. Strings are a u64 length and bytes.
// Nothing in the file is believed: every count is compared with the bytes that are left before
// anything is allocated, every product is overflow-checked, and the cursor can not leave the file.
// Cost: one pass over the header part; the tensor data is not touched.
#include "io/gguf_parser.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <type_traits>

#include "base/result_macros.hpp"
#include "io/gguf_cursor.hpp"
#include "io/message.hpp"
#include "volvelle/base/checked.hpp"
#include "volvelle/io/mapped_file.hpp"

namespace volvelle {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied as they lie in the file");

constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxDims = 4;
constexpr std::uint64_t kMaxTensorName = 63;  // the engine keeps 64 bytes with the terminator
constexpr std::uint64_t kMaxArrayElements = std::uint64_t{1}
                                            << 26;  // of all arrays together; real files have 1e6
constexpr std::uint64_t kMinKeyBytes =
    8 + 1 + 4 + 1;  // length, one character, type, one byte of value
constexpr std::uint64_t kMinTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // length, character, n_dims, dim, type, offset

enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

using io::corrupt;

class Parser : io::GgufCursor {
 public:
  Parser(std::span<const std::byte> file, GgufFile& out) : GgufCursor(file), out_(out) {}

  Status parse();

 private:
  Status parse_preamble();
  Status parse_key();
  Result<GgufValue> value(ValueType type);
  Result<GgufValue> array();
  template <class T, class Wide>
  Result<GgufValue> number_array(std::uint64_t n);
  Result<GgufValue> bool_array(std::uint64_t n);
  Result<GgufValue> string_array(std::uint64_t n);
  Status note_alignment(ValueType type, const GgufValue& value);

  Status parse_tensor();
  Status check_size(GgufTensor& tensor) const;
  Status place_tensors();

  GgufFile& out_;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t n_keys_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::uint64_t array_elements_ = 0;
  std::set<std::string, std::less<>> tensor_names_;
};

Status Parser::parse_preamble() {
  static constexpr char kMagic[4] = {'G', 'G', 'U', 'F'};
  if (file_.size() < sizeof(kMagic) || std::memcmp(file_.data(), kMagic, sizeof(kMagic)) != 0) {
    return corrupt("expected the magic bytes 'GGUF', found " +
                   io::quoted(std::string_view(reinterpret_cast<const char*>(file_.data()),
                                               std::min(file_.size(), sizeof(kMagic)))) +
                   "; this is not a GGUF file");
  }
  at_ = sizeof(kMagic);
  VOLVELLE_ASSIGN_OR_RETURN(out_.version, number<std::uint32_t>("the version"));
  if (out_.version < 2 || out_.version > 3) {
    const bool swapped = (out_.version & 0xFFFFu) == 0;
    return Error{ErrorCode::kUnsupported,
                 "expected version 2 or 3, found " + std::to_string(out_.version) +
                     (swapped ? " (a big-endian file)" : "") + "; convert the model again"};
  }
  VOLVELLE_ASSIGN_OR_RETURN(n_tensors_, number<std::uint64_t>("the tensor count"));
  VOLVELLE_ASSIGN_OR_RETURN(n_keys_, number<std::uint64_t>("the key count"));
  VOLVELLE_RETURN_IF_ERROR(count(n_tensors_, kMinTensorBytes, "the tensor count"));
  return count(n_keys_, kMinKeyBytes, "the key count");
}

Status Parser::parse_key() {
  VOLVELLE_ASSIGN_OR_RETURN(std::string key, string("a key"));
  if (key.empty()) return corrupt("a key at byte " + std::to_string(at_) + " has no name");
  const std::string where = "key " + io::quoted(key) + ": ";
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint32_t type, number<std::uint32_t>("a value type"));
  if (type > static_cast<std::uint32_t>(ValueType::kF64)) {
    return corrupt(where + "unknown value type " + std::to_string(type));
  }
  Result<GgufValue> read =
      type == static_cast<std::uint32_t>(ValueType::kArray) ? array() : value(ValueType{type});
  if (!read.ok()) return Error{read.error().code, where + read.error().message};
  if (key == kAlignmentKey) VOLVELLE_RETURN_IF_ERROR(note_alignment(ValueType{type}, *read));
  if (!out_.metadata.emplace(std::move(key), std::move(read).value()).second)
    return corrupt(where + "occurs twice");
  return {};
}

template <class Wide, class T>
Result<GgufValue> widened(const Result<T>& narrow) {
  if (!narrow.ok()) return narrow.error();
  return GgufValue(static_cast<Wide>(*narrow));
}

Result<GgufValue> Parser::value(ValueType type) {
  static constexpr std::string_view kWhat = "a value";
  switch (type) {
    case ValueType::kU8:
      return widened<std::uint64_t>(number<std::uint8_t>(kWhat));
    case ValueType::kU16:
      return widened<std::uint64_t>(number<std::uint16_t>(kWhat));
    case ValueType::kU32:
      return widened<std::uint64_t>(number<std::uint32_t>(kWhat));
    case ValueType::kU64:
      return widened<std::uint64_t>(number<std::uint64_t>(kWhat));
    case ValueType::kI8:
      return widened<std::int64_t>(number<std::int8_t>(kWhat));
    case ValueType::kI16:
      return widened<std::int64_t>(number<std::int16_t>(kWhat));
    case ValueType::kI32:
      return widened<std::int64_t>(number<std::int32_t>(kWhat));
    case ValueType::kI64:
      return widened<std::int64_t>(number<std::int64_t>(kWhat));
    case ValueType::kF32:
      return widened<double>(number<float>(kWhat));
    case ValueType::kF64:
      return widened<double>(number<double>(kWhat));
    case ValueType::kBool:
      return widened<bool>(boolean());
    case ValueType::kString:
      return widened<std::string>(string(kWhat));
    case ValueType::kArray:
      break;
  }
  return corrupt("arrays inside arrays are not read");
}

Result<GgufValue> Parser::array() {
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint32_t type, number<std::uint32_t>("an array type"));
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t n, number<std::uint64_t>("an array length"));
  VOLVELLE_RETURN_IF_ERROR(count(n, 1, "the array length"));
  array_elements_ +=
      n;  // can not overflow: n is at most the file size, and so is the sum's number of terms
  if (array_elements_ > kMaxArrayElements) {
    return Error{ErrorCode::kUnsupported, "expected at most " + std::to_string(kMaxArrayElements) +
                                              " array elements in the file, found more"};
  }
  switch (ValueType{type}) {
    case ValueType::kU8:
      return number_array<std::uint8_t, std::uint64_t>(n);
    case ValueType::kU16:
      return number_array<std::uint16_t, std::uint64_t>(n);
    case ValueType::kU32:
      return number_array<std::uint32_t, std::uint64_t>(n);
    case ValueType::kU64:
      return number_array<std::uint64_t, std::uint64_t>(n);
    case ValueType::kI8:
      return number_array<std::int8_t, std::int64_t>(n);
    case ValueType::kI16:
      return number_array<std::int16_t, std::int64_t>(n);
    case ValueType::kI32:
      return number_array<std::int32_t, std::int64_t>(n);
    case ValueType::kI64:
      return number_array<std::int64_t, std::int64_t>(n);
    case ValueType::kF32:
      return number_array<float, double>(n);
    case ValueType::kF64:
      return number_array<double, double>(n);
    case ValueType::kBool:
      return bool_array(n);
    case ValueType::kString:
      return string_array(n);
    case ValueType::kArray:
      return corrupt("arrays inside arrays are not read");
  }
  return corrupt("unknown array type " + std::to_string(type));
}

template <class T, class Wide>
Result<GgufValue> Parser::number_array(std::uint64_t n) {
  VOLVELLE_RETURN_IF_ERROR(count(n, sizeof(T), "the array length"));
  std::vector<Wide> values(static_cast<std::size_t>(n));
  for (Wide& wide : values) wide = static_cast<Wide>(unchecked_number<T>());
  return GgufValue(std::move(values));
}

Result<GgufValue> Parser::bool_array(std::uint64_t n) {
  VOLVELLE_RETURN_IF_ERROR(count(n, 1, "the array length"));
  std::vector<bool> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(values[i], boolean());
  }
  return GgufValue(std::move(values));
}

Result<GgufValue> Parser::string_array(std::uint64_t n) {
  VOLVELLE_RETURN_IF_ERROR(count(n, sizeof(std::uint64_t), "the array length"));
  std::vector<std::string> values;
  values.reserve(static_cast<std::size_t>(n));
  for (std::uint64_t i = 0; i < n; ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(std::string text, string("a string"));
    values.push_back(std::move(text));
  }
  return GgufValue(std::move(values));
}

/// The engine reads this key as u32 without looking at its type, so anything else is refused here.
Status Parser::note_alignment(ValueType type, const GgufValue& value) {
  const std::string where = "key " + io::quoted(kAlignmentKey) + ": ";
  if (type != ValueType::kU32)
    return corrupt(where + "expected type u32, found type " + std::to_string(int(type)));
  alignment_ = std::get<std::uint64_t>(value);
  if (std::has_single_bit(alignment_) && alignment_ <= kMaxAlignment) return {};
  return corrupt(where + "expected a power of two up to " + std::to_string(kMaxAlignment) +
                 ", found " + std::to_string(alignment_));
}

Status Parser::parse_tensor() {
  GgufTensor tensor;
  VOLVELLE_ASSIGN_OR_RETURN(tensor.name, string("a tensor name"));
  const std::string where = "tensor " + io::quoted(tensor.name) + ": ";
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorName) {
    return corrupt(where + "expected a name of 1 to " + std::to_string(kMaxTensorName) +
                   " bytes, found " + std::to_string(tensor.name.size()));
  }
  if (!tensor_names_.insert(tensor.name).second) return corrupt(where + "occurs twice");
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint32_t n_dims,
                            number<std::uint32_t>("a tensor's number of dimensions"));
  if (n_dims < 1 || n_dims > kMaxDims) {
    return corrupt(where + "expected 1 to " + std::to_string(kMaxDims) + " dimensions, found " +
                   std::to_string(n_dims));
  }
  for (std::uint32_t i = 0; i < n_dims; ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t dim, number<std::uint64_t>("a tensor dimension"));
    tensor.shape.push_back(dim);
  }
  VOLVELLE_ASSIGN_OR_RETURN(tensor.type, number<std::uint32_t>("a tensor type"));
  VOLVELLE_ASSIGN_OR_RETURN(tensor.offset, number<std::uint64_t>("a tensor offset"));
  if (Status size = check_size(tensor); !size.ok())
    return Error{size.error().code, where + size.error().message};
  out_.tensors.push_back(std::move(tensor));
  return {};
}

/// Sets `bytes`; `offset` still counts from the data section.
Status Parser::check_size(GgufTensor& tensor) const {
  const std::optional<GgmlTypeInfo> type = ggml_type_info(tensor.type);
  if (!type) {
    return Error{ErrorCode::kUnsupported, "unknown tensor type id " + std::to_string(tensor.type) +
                                              "; convert the model to a type this version knows"};
  }
  std::optional<std::uint64_t> elements = 1;
  for (const std::uint64_t dim : tensor.shape) {
    if (dim == 0) return corrupt("expected non-zero dimensions, found 0");
    elements = checked_mul(*elements, dim);
    if (!elements || *elements > std::uint64_t{INT64_MAX})
      return corrupt("its dimensions overflow 63 bits");
  }
  if (tensor.shape[0] % type->block_elements != 0) {
    return corrupt("expected rows of a multiple of " + std::to_string(type->block_elements) +
                   " elements for " + std::string(type->name) + ", found " +
                   std::to_string(tensor.shape[0]));
  }
  const std::optional<std::uint64_t> bytes =
      checked_mul(*elements / type->block_elements, type->block_bytes);
  if (!bytes || *bytes > file_.size()) {
    return corrupt("declares more bytes than the file of " + std::to_string(file_.size()) + " has");
  }
  if (tensor.offset % alignment_ != 0) {
    return corrupt("expected an offset at a multiple of " + std::to_string(alignment_) +
                   ", found " + std::to_string(tensor.offset));
  }
  tensor.bytes = *bytes;
  return {};
}

/// Turns offsets into file offsets, and checks that tensors lie inside the file and apart from each
/// other.
Status Parser::place_tensors() {
  if (out_.tensors.empty()) return {};
  const std::uint64_t data = (at_ + alignment_ - 1) / alignment_ * alignment_;
  std::vector<const GgufTensor*> order;
  for (GgufTensor& tensor : out_.tensors) {
    const std::optional<std::uint64_t> begin = checked_add(data, tensor.offset);
    const std::optional<std::uint64_t> end =
        begin ? checked_add(*begin, tensor.bytes) : std::nullopt;
    if (!end || *end > file_.size()) {
      return corrupt("tensor " + io::quoted(tensor.name) + ": " + std::to_string(tensor.bytes) +
                     " bytes at offset " + std::to_string(tensor.offset) +
                     " of the data do not lie inside the file of " + std::to_string(file_.size()) +
                     " bytes; the file is cut short or damaged");
    }
    tensor.offset = *begin;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return corrupt("tensors " + io::quoted(order[i - 1]->name) + " and " +
                     io::quoted(order[i]->name) + " overlap");
    }
  }
  return {};
}

Status Parser::parse() {
  VOLVELLE_RETURN_IF_ERROR(parse_preamble());
  for (std::uint64_t i = 0; i < n_keys_; ++i) VOLVELLE_RETURN_IF_ERROR(parse_key());
  for (std::uint64_t i = 0; i < n_tensors_; ++i) VOLVELLE_RETURN_IF_ERROR(parse_tensor());
  return place_tensors();
}

}  // namespace

Result<GgufFile> io::parse_gguf(std::span<const std::byte> file,
                                const std::filesystem::path& path) {
  GgufFile out;
  out.path = path;
  out.file_bytes = file.size();
  const Status status = Parser(file, out).parse();
  if (!status.ok())
    return Error{status.error().code,
                 "reading GGUF " + quoted_path(path) + ": " + status.error().message};
  return out;
}

}  // namespace volvelle
