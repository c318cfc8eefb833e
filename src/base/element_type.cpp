// Names of element types: one list, used for printing and for parsing, so the two can not disagree.
// A new type needs a line here, a row size in the header, and loads and stores in the kernels.
#include "volvelle/base/element_type.hpp"

namespace volvelle {

std::string_view to_string(ElementType type) noexcept {
  return type == ElementType::kF32 ? "f32" : "f16";
}

std::optional<ElementType> parse_element_type(std::string_view name) noexcept {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16}) {
    if (name == to_string(type)) return type;
  }
  return std::nullopt;
}

}  // namespace volvelle
