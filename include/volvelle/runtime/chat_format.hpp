// Documents, questions and whole conversations in a chat template.
//
//   [before_document] document + separator + question [after_question]
//
// The template is rendered by llama.cpp (a list of known templates, no Jinja) around marks, and the
// contents are put in their place. Contents count without the white space at their ends, and are
// plain text: only the template's own parts can open or close a turn.
#pragma once

#include <span>
#include <string>

#include "volvelle/runtime/model.hpp"

namespace volvelle {

struct ChatFormat {
  std::string name = "raw";     // "raw", or the template's name
  std::string template_hash;    // empty for raw
  std::string before_document;  // "<|im_start|>user\n"
  std::string after_question;   // "<|im_end|>\n<|im_start|>assistant\n"
  std::string chat_template;    // its text, or the name of a built-in one
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

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  std::int64_t offset = -1;  // of the content in the text that ranges refer to; -1: no ranges
};
/// Tokens of a conversation of any number of turns, with the opening of the next answer if
/// `open_answer`. One message from the user gives the tokens of tokenize_conversation(). A template
/// that has no place for one of the messages is an error.
Result<DocumentTokens> tokenize_messages(const Tokenizer& tokenizer, const ChatFormat& format,
                                         std::span<const ChatMessage> messages, bool open_answer);

/// Without the white space at its ends.
std::string_view trim_content(std::string_view text) noexcept;

}  // namespace volvelle
