// What a command hands back, and how it is written.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace volvelle::cli {

using Json = nlohmann::ordered_json;

// Exit codes beside 0.
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kVerificationFailed = 3;  // something that was promised does not hold
inline constexpr int kInterrupted = 130;

/// The result of a command: `json` for programs (null when it was written piece by piece), `text`
/// for people (may be empty when the text was streamed).
struct Report {
  Json json;
  std::string text;
  int exit_code = 0;
};

template <class T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

/// What is empty is absent.
inline Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

/// For people: control characters, which a terminal would obey, and bytes that are no UTF-8, as \n,
/// \x1b or \xff.
std::string escape_controls(std::string_view text);

/// One line of JSON. Names of files need not be UTF-8; their bad bytes come out as U+FFFD.
std::string to_line(const Json& json);

/// "key: value" lines of an object's scalar entries; nested ones and nulls are left out.
std::string render_fields(const Json& object);

enum class TableFormat { kMarkdown, kCsv };
/// A table of an array of flat objects with the same keys. Numbers have six digits.
std::string render_rows(const Json& rows, TableFormat format);

/// "1.25 MiB"
std::string human_bytes(std::uint64_t bytes);

}  // namespace volvelle::cli
