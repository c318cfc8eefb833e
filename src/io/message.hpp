// Parts of error messages about files. A message is one line whatever a hostile file or path holds,
// so every text that comes from outside is quoted here: control characters and bytes that are not
// UTF-8 become \xNN and long texts are cut.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace volvelle::io {

/// 'text' in quotes, printable, at most `max_bytes` of it. Backslashes are escaped, too.
std::string quoted(std::string_view text, std::size_t max_bytes = 80);
/// A whole message whose parts come from outside, as one printable line. Changes no printable text,
/// so it may be applied again.
std::string printable(std::string_view text, std::size_t max_bytes = 2000);
std::string quoted_path(const std::filesystem::path& path);

/// The system's words for an errno value.
std::string system_message(int error_number);

}  // namespace volvelle::io
