// Element types of stored key and value rows. One list in element_type.cpp names them, for printing
// and for parsing. Sizes go through row_bytes(), because block-quantised types have no size of one
// element.
//
// Block types cut a row into blocks of kQuantBlock elements along the row; the last block of a row
// whose length is no multiple of it is filled with zeros. A block is little-endian and unaligned:
//   q8_0  f16 scale, 32 x int8:                        x_i = scale * q_i
//   q4_0  f16 scale, 16 bytes; byte j holds element j in its low and j + 16 in its high nibble:
//                                                      x_i = scale * (q_i - 8)
// which are ggml's layouts of the same names. Products of scale and quant are exact in float.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace volvelle {

enum class ElementType : std::uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0 };

/// All of them, in the order of their values.
inline constexpr std::array<ElementType, 5> kElementTypes = {ElementType::kF32, ElementType::kF16,
                                                             ElementType::kBF16, ElementType::kQ8_0,
                                                             ElementType::kQ4_0};

inline constexpr std::int64_t kQuantBlock = 32;  // elements that share a scale

constexpr bool is_block_quantized(ElementType type) noexcept {
  return type == ElementType::kQ8_0 || type == ElementType::kQ4_0;
}

/// Bytes of one row of `dim` elements, the filling of its last block included.
constexpr std::size_t row_bytes(ElementType type, std::int64_t dim) noexcept {
  const auto n = static_cast<std::size_t>(dim);
  const auto blocks = static_cast<std::size_t>((dim + kQuantBlock - 1) / kQuantBlock);
  switch (type) {
    case ElementType::kF32:
      return 4 * n;
    case ElementType::kF16:
    case ElementType::kBF16:
      return 2 * n;
    case ElementType::kQ8_0:
      return 34 * blocks;
    case ElementType::kQ4_0:
      break;
  }
  return 18 * blocks;
}

std::string_view to_string(ElementType type) noexcept;  // "f32", "f16", "bf16", "q8_0", "q4_0"
std::optional<ElementType> parse_element_type(
    std::string_view name) noexcept;  // nothing for unknown names

}  // namespace volvelle
