// Quoting for error messages; see the header. Whole UTF-8 characters pass; bytes that form none,
// control characters (those of two bytes, too) and backslashes do not. Cost: linear in the part
// that is shown.
#include "io/message.hpp"

#include <system_error>

#include "base/utf8.hpp"

namespace volvelle::io {
namespace {

constexpr std::size_t kMaxPathChars = 4096;  // PATH_MAX: paths are shown whole

bool is_printable(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first >= 0x20 && first != 0x7F;
  return first != 0xC2 || static_cast<unsigned char>(character[1]) >= 0xA0;  // U+0080 to U+009F
}

void append_escaped(std::string& out, std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char raw : bytes) {
    const auto c = static_cast<unsigned char>(raw);
    out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
  }
}

/// At most `max_bytes` of the text, up to the end of a character.
std::string escaped(std::string_view text, std::size_t max_bytes, bool backslashes) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size() && at < max_bytes) {
    const Utf8Character character = utf8_character(text.substr(at));
    const std::string_view bytes = text.substr(at, character.size);
    const bool plain = character.kind == Utf8Kind::kValid && is_printable(bytes) &&
                       !(backslashes && bytes == "\\");
    if (plain) {
      out += bytes;
    } else {
      append_escaped(out, bytes);
    }
    at += character.size;
  }
  return at < text.size() ? out + "..." : out;
}

}  // namespace

std::string quoted(std::string_view text, std::size_t max_bytes) {
  return "'" + escaped(text, max_bytes, true) + "'";
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  return escaped(text, max_bytes, false);
}

std::string quoted_path(const std::filesystem::path& path) {
  return quoted(path.native(), kMaxPathChars);
}

std::string system_message(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace volvelle::io
