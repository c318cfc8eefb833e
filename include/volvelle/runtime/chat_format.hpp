// Where a document and a question stand in a chat template.
//
//   [before_document] document + separator + question [after_question]
//
// The template is rendered once by llama.cpp (a list of known templates, no Jinja). Template parts
// are tokenized with control tokens recognised, document and question as plain text, so a document
// can not smuggle in a turn.
#pragma once

#include <string>

#include "volvelle/runtime/model.hpp"

namespace volvelle {

struct ChatFormat {
  std::string name = "raw";     // "raw", or the template's name
  std::string template_hash;    // empty for raw
  std::string before_document;  // "<|im_start|>user\n"
  std::string after_question;   // "<|im_end|>\n<|im_start|>assistant\n"
  bool operator==(const ChatFormat&) const = default;
};

inline constexpr std::string_view kQuestionSeparator = "\n\n";

/// `name`: "raw", "chat" (the model's own template) or a built-in template's name ("chatml").
/// Unknown ones are errors that name
/// --chat-template and --format raw.
Result<ChatFormat> make_chat_format(const Model& model, const std::string& name);
/// "chat" if the model has a template that llama.cpp knows, else "raw".
std::string default_chat_format(const Model& model);

/// Tokens of everything up to the end of the document, ranges into `document`. Leading and trailing
/// white space of the document does not count as text. text_begin_token is the number of tokens
/// before the document.
struct DocumentTokens {
  std::vector<TokenId> tokens;
  std::vector<ByteRange> ranges;
  std::int64_t text_begin_token = 0;
};
Result<DocumentTokens> tokenize_document(const Tokenizer& tokenizer, const ChatFormat& format,
                                         std::string_view document);
/// Tokens of the whole conversation: document, separator, question, and the opening of the answer.
Result<DocumentTokens> tokenize_conversation(const Tokenizer& tokenizer, const ChatFormat& format,
                                             std::string_view document, std::string_view question);

}  // namespace volvelle
