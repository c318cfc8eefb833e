// Templates are rendered by the engine around marks; what stands before, between and after them is
// the format. So the text of a message never goes through a template, which could not tell it from
// its own parts. fold, ask and chat take the same path for the same content.
#include "volvelle/runtime/chat_format.hpp"

#include <vector>

#include "base/result_macros.hpp"
#include "runtime/engine.hpp"
#include "runtime/model_impl.hpp"
#include "runtime/text_pieces.hpp"
#include "volvelle/io/checksum.hpp"

namespace volvelle {
namespace {

constexpr const char* kWhiteSpace = " \t\r\n";

std::string mark(std::size_t i) { return "VOLVELLE-MESSAGE-" + std::to_string(i) + "-CONTENT"; }

/// The conversation with a mark for the content of each message, or empty if llama.cpp does not
/// know the template.
std::string render(const std::string& chat_template, std::span<const std::string> roles,
                   bool open_answer) {
  std::vector<std::string> marks;
  for (std::size_t i = 0; i < roles.size(); ++i) marks.push_back(mark(i));
  std::vector<llama_chat_message> messages;
  for (std::size_t i = 0; i < roles.size(); ++i)
    messages.push_back({roles[i].c_str(), marks[i].c_str()});
  std::string text(4096, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int32_t n =
        llama_chat_apply_template(chat_template.c_str(), messages.data(), messages.size(),
                                  open_answer, text.data(), static_cast<std::int32_t>(text.size()));
    if (n < 0) return {};
    const bool fits = static_cast<std::size_t>(n) <= text.size();
    text.resize(static_cast<std::size_t>(n));
    if (fits) break;
  }
  return text;
}

std::string render_one(const std::string& chat_template) {
  const std::string role = "user";
  return chat_template.empty() ? std::string() : render(chat_template, {&role, 1}, true);
}

std::string hash_of(const std::string& text) {
  return to_hex(checksum(std::as_bytes(std::span(text.data(), text.size()))));
}

std::int64_t offset_in(std::string_view document, std::string_view body) {
  return body.empty() ? 0 : body.data() - document.data();
}

}  // namespace

std::string_view trim_content(std::string_view text) noexcept {
  const std::size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return text.substr(0, 0);
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

std::string default_chat_format(const Model& model) {
  return render_one(model.info().chat_template).empty() ? "raw" : "chat";
}

Result<ChatFormat> make_chat_format(const Model& model, const std::string& name) {
  if (name == "raw") return ChatFormat{};
  const bool own = name == "chat";
  const std::string& chat_template = own ? model.info().chat_template : name;
  if (chat_template.empty()) {
    return Error{ErrorCode::kUnsupported,
                 "chat format: the model has no chat template; name one with --chat-template NAME "
                 "or use --format raw"};
  }
  const std::string text = render_one(chat_template);
  const std::size_t at = text.find(mark(0));
  if (text.empty() || at == std::string::npos) {
    return Error{ErrorCode::kUnsupported,
                 own ? std::string("chat format: the model's chat template is not one that this "
                                   "engine knows; name one with "
                                   "--chat-template NAME (for example chatml) or use --format raw")
                     : "chat format: '" + name +
                           "' is not a known chat template; use another --chat-template NAME or "
                           "--format raw"};
  }
  return ChatFormat{name, hash_of(chat_template), text.substr(0, at),
                    text.substr(at + mark(0).size()), chat_template};
}

Result<DocumentTokens> tokenize_document(const Tokenizer& tokenizer, const ChatFormat& format,
                                         std::string_view document) {
  const std::string_view body = trim_content(document);
  const std::vector<TextPiece> pieces{{format.before_document},
                                      {body, true, offset_in(document, body)}};
  return tokenize_pieces(tokenizer, pieces);
}

Result<DocumentTokens> tokenize_conversation(const Tokenizer& tokenizer, const ChatFormat& format,
                                             std::string_view document, std::string_view question) {
  const std::string_view body = trim_content(document);
  const std::vector<TextPiece> pieces{{format.before_document},
                                      {body, true, offset_in(document, body)},
                                      {kQuestionSeparator, true},
                                      {trim_content(question), true},
                                      {format.after_question}};
  return tokenize_pieces(tokenizer, pieces);
}

Result<DocumentTokens> tokenize_messages(const Tokenizer& tokenizer, const ChatFormat& format,
                                         std::span<const ChatMessage> messages, bool open_answer) {
  const auto refuse = [](const std::string& what) {
    return Error{ErrorCode::kUnsupported, "chat format: " + what};
  };
  if (format.chat_template.empty()) return refuse("raw text has no turns; use a chat template");
  std::vector<std::string> roles;
  for (const ChatMessage& message : messages) roles.push_back(message.role);
  const std::string rendered = render(format.chat_template, roles, open_answer);
  std::vector<TextPiece> pieces;
  std::string_view rest = rendered;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string found = mark(i);
    const std::size_t at = rest.find(found);
    if (at == std::string_view::npos) {
      return refuse("the template '" + format.name + "' has no place for a message of the role '" +
                    roles[i] + "' here; use another --chat-template NAME or leave it out");
    }
    const std::string_view content = trim_content(messages[i].content);
    const std::int64_t offset = messages[i].offset;
    // Nothing between two contents makes them one, which can hold a control token together.
    if (at > 0) pieces.push_back({rest.substr(0, at)});
    pieces.push_back(
        {content, true, offset < 0 ? offset : offset + offset_in(messages[i].content, content)});
    rest.remove_prefix(at + found.size());
  }
  pieces.push_back({rest});
  return tokenize_pieces(tokenizer, pieces);
}

}  // namespace volvelle
