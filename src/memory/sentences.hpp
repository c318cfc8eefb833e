// Borders of sentences in plain text, for showing passages.
//
// A sentence ends behind . ! ? and closing quotes or brackets when white space and no small letter
// follows, and at an empty line; behind the full stops of Chinese and Japanese always. A full stop
// behind a capitalised word of up to three letters (Mr. Dr. J.) is an abbreviation. Rules of thumb:
// a border missed makes a passage longer, nothing else. Cost: a few bytes around each place asked.
#pragma once

#include <cstddef>
#include <string_view>

namespace volvelle {

/// How far a border is looked for.
inline constexpr std::size_t kMaxSentenceBytes = 600;
/// What is taken instead, up to the border of a word or at least of a character, where there is
/// none.
inline constexpr std::size_t kMarginBytes = 80;

/// First byte of the sentence that holds byte `at`.
std::size_t sentence_begin(std::string_view text, std::size_t at) noexcept;
/// One past the last byte of the sentence that holds byte `at`, without white space.
std::size_t sentence_end(std::string_view text, std::size_t at) noexcept;

}  // namespace volvelle
