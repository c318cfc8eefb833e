// The characters of a UTF-8 text, one at a time (RFC 3629: no overlong forms, no surrogates, at
// most U+10FFFF). Header-only: error messages, tokens and texts all look at bytes that may be
// anything.
#pragma once

#include <cstddef>
#include <string_view>

namespace volvelle {

enum class Utf8Kind { kValid, kInvalid, kIncomplete };
struct Utf8Character {
  Utf8Kind kind;
  std::size_t size;  // of the character, or of the bytes to give up on
};

/// Looks at the character that starts at `text[0]`; `text` is not empty.
inline Utf8Character utf8_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::kValid, 1};
  const std::size_t size = lead >= 0xC2 && lead <= 0xDF   ? 2
                           : lead >= 0xE0 && lead <= 0xEF ? 3
                           : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                          : 0;
  if (size == 0) return {Utf8Kind::kInvalid, 1};
  for (std::size_t i = 1; i < size; ++i) {
    if (i >= text.size()) return {Utf8Kind::kIncomplete, text.size()};
    unsigned low = 0x80;
    unsigned high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;
    if (i == 1 && lead == 0xED) high = 0x9F;
    if (i == 1 && lead == 0xF0) low = 0x90;
    if (i == 1 && lead == 0xF4) high = 0x8F;
    if (byte(i) < low || byte(i) > high) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kValid, size};
}

}  // namespace volvelle
