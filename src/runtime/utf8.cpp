// Whole characters only: a token may end in the middle of one. Bytes that can still become a
// character are held back; bytes that never can come out as U+FFFD, one for each maximal broken
// part (RFC 3629).
#include <cstddef>
#include <cstdint>

#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle {
namespace {

enum class Kind { kValid, kInvalid, kIncomplete };
struct Character {
  Kind kind;
  std::size_t size;  // of the character, or of the bytes to give up on
};

/// Looks at the character that starts at `text[0]` (RFC 3629: no overlong forms, no surrogates, at
/// most U+10FFFF).
Character look(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Kind::kValid, 1};
  const std::size_t size = lead >= 0xC2 && lead <= 0xDF   ? 2
                           : lead >= 0xE0 && lead <= 0xEF ? 3
                           : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                          : 0;
  if (size == 0) return {Kind::kInvalid, 1};
  for (std::size_t i = 1; i < size; ++i) {
    if (i >= text.size()) return {Kind::kIncomplete, text.size()};
    unsigned low = 0x80;
    unsigned high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;
    if (i == 1 && lead == 0xED) high = 0x9F;
    if (i == 1 && lead == 0xF0) low = 0x90;
    if (i == 1 && lead == 0xF4) high = 0x8F;
    if (byte(i) < low || byte(i) > high) return {Kind::kInvalid, i};
  }
  return {Kind::kValid, size};
}

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string Utf8Assembler::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const Character character = look(std::string_view(pending_).substr(at));
    if (character.kind == Kind::kIncomplete) break;
    if (character.kind == Kind::kValid) out.append(pending_, at, character.size);
    if (character.kind == Kind::kInvalid) out += kReplacement;
    at += character.size;
  }
  pending_.erase(0, at);
  return out;
}

std::string Utf8Assembler::finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? kReplacement : "";
}

std::size_t find_invalid_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const Character character = look(text.substr(at));
    if (character.kind != Kind::kValid) return at;
    at += character.size;
  }
  return std::string_view::npos;
}

}  // namespace volvelle
