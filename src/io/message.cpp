// Quoting for error messages; see the header. Bytes of UTF-8 sequences pass, control characters and
// backslashes do not. Cost: linear in the part that is shown.
#include "io/message.hpp"

#include <system_error>

namespace volvelle::io {
namespace {

constexpr std::size_t kMaxPathChars = 4096;  // PATH_MAX: paths are shown whole

bool is_plain(unsigned char c) { return c >= 0x20 && c != 0x7F && c != '\\'; }

}  // namespace

std::string quoted(std::string_view text, std::size_t max_chars) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char raw : text.substr(0, max_chars)) {
    const auto c = static_cast<unsigned char>(raw);
    if (is_plain(c)) {
      out += raw;
    } else {
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    }
  }
  if (text.size() > max_chars) out += "...";
  return out += "'";
}

std::string quoted_path(const std::filesystem::path& path) {
  return quoted(path.native(), kMaxPathChars);
}

std::string system_message(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace volvelle::io
