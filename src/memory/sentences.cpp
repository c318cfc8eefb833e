// See sentences.hpp. Bytes above 127 are parts of characters that are neither white space nor, but
// for the marks named here, the end of anything.
#include "memory/sentences.hpp"

#include <algorithm>
#include <array>

namespace volvelle {
namespace {

constexpr std::array<std::string_view, 7> kClosers{"\"", "'", ")", "]", "_", "\u201D", "\u2019"};
constexpr std::array<std::string_view, 3> kWideStops{"\u3002", "\uFF01", "\uFF1F"};

bool is_space(char c) noexcept { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_small(char c) noexcept { return c >= 'a' && c <= 'z'; }
bool is_capital(char c) noexcept { return c >= 'A' && c <= 'Z'; }
bool starts_character(char c) noexcept { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::string_view without_closers(std::string_view text) noexcept {
  for (bool found = true; found;) {
    const auto closer = std::find_if(kClosers.begin(), kClosers.end(),
                                     [&](std::string_view c) { return text.ends_with(c); });
    found = closer != kClosers.end();
    if (found) text.remove_suffix(closer->size());
  }
  return text;
}

/// "Mr." at the end of `text`.
bool ends_with_abbreviation(std::string_view text) noexcept {
  if (!text.ends_with('.')) return false;
  text.remove_suffix(1);
  std::size_t letters = 0;
  while (letters < text.size()) {
    const char c = text[text.size() - 1 - letters];
    if (!is_small(c) && !is_capital(c)) break;
    ++letters;
  }
  return letters >= 1 && letters <= 3 && is_capital(text[text.size() - letters]);
}

/// Whether a sentence begins at `at`, where no white space stands.
bool begins_sentence(std::string_view text, std::size_t at) noexcept {
  std::string_view before = text.substr(0, at);
  std::size_t line_ends = 0;
  while (!before.empty() && is_space(before.back())) {
    line_ends += before.back() == '\n' ? 1 : 0;
    before.remove_suffix(1);
  }
  if (before.empty() || line_ends >= 2) return true;
  const bool spaced = before.size() < at;
  const std::string_view words = without_closers(before);
  const auto ends_wide = [&](std::string_view stop) { return words.ends_with(stop); };
  if (std::any_of(kWideStops.begin(), kWideStops.end(), ends_wide)) {
    return spaced || without_closers(text.substr(0, at + 1)).size() > at;  // no closer follows
  }
  const bool stops = words.ends_with('.') || words.ends_with('!') || words.ends_with('?') ||
                     words.ends_with("\u2026");
  return spaced && stops && !is_small(text[at]) && !ends_with_abbreviation(words);
}

}  // namespace

std::size_t sentence_begin(std::string_view text, std::size_t at) noexcept {
  while (at < text.size() && at > 0 && is_space(text[at])) --at;
  const std::size_t limit = at > kMaxSentenceBytes ? at - kMaxSentenceBytes : 0;
  const std::size_t margin = at > kMarginBytes ? at - kMarginBytes : 0;
  std::size_t word = at;       // the first beginning of a word inside the margin
  std::size_t character = at;  // likewise
  for (std::size_t i = at + 1; i-- > limit;) {
    if (i >= text.size() || is_space(text[i]) || !starts_character(text[i])) continue;
    if (begins_sentence(text, i)) return i;
    if (i < margin) continue;
    character = i;
    if (i > 0 && is_space(text[i - 1])) word = i;
  }
  return word < at ? word : character;
}

std::size_t sentence_end(std::string_view text, std::size_t at) noexcept {
  const std::size_t limit = std::min(text.size(), at + kMaxSentenceBytes);
  std::size_t word = 0;       // the last end of a word inside the margin
  std::size_t character = 0;  // likewise
  std::size_t end = 0;        // one past the last byte that is no white space
  for (std::size_t i = at; i < limit; ++i) {
    const bool inside = i <= at + kMarginBytes;
    if (is_space(text[i])) {
      if (inside && i > at && !is_space(text[i - 1])) word = i;
      continue;
    }
    if (i > at && starts_character(text[i])) {
      if (end > at && begins_sentence(text, i)) return end;
      if (inside) character = i;
    }
    end = i + 1;
  }
  if (limit == text.size()) return end;
  return word > at ? word : std::max(character, at + 1);
}

}  // namespace volvelle
