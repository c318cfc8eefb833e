// Names of element types: one list, used for printing and for parsing, so the two can not disagree.
// A new type needs a line here, a row size in the header, and loads and stores in the kernels.
#include "volvelle/base/element_type.hpp"

namespace volvelle {

std::string_view to_string(ElementType type) noexcept {
  constexpr std::array<std::string_view, kElementTypes.size()> kNames = {"f32", "f16", "bf16",
                                                                         "q8_0", "q4_0"};
  return kNames[static_cast<std::size_t>(type)];
}

std::optional<ElementType> parse_element_type(std::string_view name) noexcept {
  for (const ElementType type : kElementTypes) {
    if (name == to_string(type)) return type;
  }
  return std::nullopt;
}

}  // namespace volvelle
