// Rendering of JSON values as lines and tables. Tables are made from the very JSON that --json
// prints, so the two can not disagree.
#include "output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/utf8.hpp"

namespace volvelle::cli {

namespace {

std::string scalar(const Json& value) {
  if (value.is_string()) return escape_controls(value.get_ref<const std::string&>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_null()) return "";
  return to_line(value);
}

// What was not measured (null) is no line, and what has parts has its own place.
bool is_field(const Json& value) { return !value.is_structured() && !value.is_null(); }

// RFC 4180: quotes around fields that contain separators, quotes doubled.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

using Cells = std::vector<std::vector<std::string>>;

std::string markdown(const Cells& cells) {
  std::vector<std::size_t> widths(cells.front().size(), 3);
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (std::size_t r = 0; r < cells.size(); ++r) {
    for (std::size_t i = 0; i < cells[r].size(); ++i) {
      text += fmt::format("| {:<{}} ", cells[r][i], widths[i]);
    }
    text += "|\n";
    if (r != 0) continue;
    for (const std::size_t width : widths) text += fmt::format("|{}", std::string(width + 2, '-'));
    text += "|\n";
  }
  return text;
}

std::string csv(const Cells& cells) {
  std::string text;
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += ',';
      text += csv_field(row[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string escape_controls(std::string_view text) {
  std::string escaped;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character character = utf8_character(text.substr(at));
    const std::string_view bytes = text.substr(at, character.size);
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    if (bytes == "\n") {
      escaped += "\\n";
    } else if (character.kind != Utf8Kind::kValid || byte(0) < 0x20 || byte(0) == 0x7F) {
      for (std::size_t i = 0; i < bytes.size(); ++i) escaped += fmt::format("\\x{:02x}", byte(i));
    } else if (byte(0) == 0xC2 && byte(1) < 0xA0) {  // U+0080 to U+009F
      escaped += fmt::format("\\u{:04x}", byte(1));
    } else {
      escaped += bytes;
    }
    at += character.size;
  }
  return escaped;
}

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string render_fields(const Json& object) {
  std::size_t width = 0;
  for (const auto& [key, value] : object.items()) {
    if (is_field(value)) width = std::max(width, key.size());
  }
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (is_field(value)) {
      text += fmt::format("{:<{}}  {}\n", key + ":", width + 1, scalar(value));
    }
  }
  return text;
}

std::string render_rows(const Json& rows, TableFormat format) {
  if (rows.empty()) return "";
  Cells cells(1);
  for (const auto& [key, value] : rows.front().items()) cells.front().push_back(key);
  for (const auto& row : rows) {
    cells.emplace_back();
    for (const auto& [key, value] : row.items()) cells.back().push_back(scalar(value));
  }
  return format == TableFormat::kCsv ? csv(cells) : markdown(cells);
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 2, kUnits[unit]);
}

}  // namespace volvelle::cli
