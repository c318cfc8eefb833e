// Tokens of a text that is put together from parts of a chat template and from contents (documents,
// questions, answers), with the place of every token in its content.
//
// The whole is tokenized in one call, as any other program would do it, so tokens that cross
// borders, and spaces that a tokenizer puts behind control tokens, come out the same. Only a
// content that holds the text of a control token is tokenized apart, as plain text, so that it can
// not open or close a turn. Cost: every content is tokenized three times.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "volvelle/runtime/chat_format.hpp"

namespace volvelle {

struct TextPiece {
  std::string_view text;
  bool is_content = false;   // else part of a template; neighbouring contents are judged together
  std::int64_t offset = -1;  // of a content in the text that ranges refer to; -1: it has no ranges
};

/// text_begin_token is the first token of the first content.
Result<DocumentTokens> tokenize_pieces(const Tokenizer& tokenizer,
                                       std::span<const TextPiece> pieces);

}  // namespace volvelle
