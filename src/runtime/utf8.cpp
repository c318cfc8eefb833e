// Whole characters only: a token may end in the middle of one. Bytes that can still become a
// character are held back; bytes that never can come out as U+FFFD, one for each maximal broken
// part.
#include "base/utf8.hpp"

#include <cstddef>

#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string Utf8Assembler::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Character character = utf8_character(std::string_view(pending_).substr(at));
    if (character.kind == Utf8Kind::kIncomplete) break;
    if (character.kind == Utf8Kind::kValid) out.append(pending_, at, character.size);
    if (character.kind == Utf8Kind::kInvalid) out += kReplacement;
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
    const Utf8Character character = utf8_character(text.substr(at));
    if (character.kind != Utf8Kind::kValid) return at;
    at += character.size;
  }
  return std::string_view::npos;
}

}  // namespace volvelle
