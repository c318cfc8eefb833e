// Element types of stored key and value rows. One list in element_type.cpp names them, for printing
// and for parsing. Row sizes go through row_bytes(), because block-quantised types have no size of
// one element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace volvelle {

enum class ElementType : std::uint8_t { kF32, kF16 };

/// Bytes of one element. Block-quantised types will need row_bytes() instead, so use that for rows.
constexpr std::size_t element_bytes(ElementType type) noexcept {
  return type == ElementType::kF32 ? 4 : 2;
}
/// Bytes of one row of `dim` elements.
constexpr std::size_t row_bytes(ElementType type, std::int64_t dim) noexcept {
  return element_bytes(type) * static_cast<std::size_t>(dim);
}

std::string_view to_string(ElementType type) noexcept;  // "f32", "f16"
std::optional<ElementType> parse_element_type(
    std::string_view name) noexcept;  // nothing for unknown names

}  // namespace volvelle
