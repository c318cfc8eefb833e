// Templates are rendered by the engine around a marker; what stands before and after it is the
// format. Template parts are tokenized with control tokens recognised; document and question are
// one piece of plain text, so that tokens which cross the border between them come out as in one
// rendering.
#include "volvelle/runtime/chat_format.hpp"

#include "base/result_macros.hpp"
#include "runtime/engine.hpp"
#include "runtime/model_impl.hpp"
#include "volvelle/io/checksum.hpp"

namespace volvelle {
namespace {

constexpr const char* kMarker = "VOLVELLE-DOCUMENT-AND-QUESTION";
constexpr const char* kWhiteSpace = " \t\r\n";

/// The rendered conversation, or empty if llama.cpp does not know the template.
std::string render(const std::string& chat_template) {
  const llama_chat_message message{"user", kMarker};
  std::string text(4096, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int32_t n =
        llama_chat_apply_template(chat_template.c_str(), &message, 1, true, text.data(),
                                  static_cast<std::int32_t>(text.size()));
    if (n < 0) return {};
    const bool fits = static_cast<std::size_t>(n) <= text.size();
    text.resize(static_cast<std::size_t>(n));
    if (fits) break;
  }
  return text;
}

std::string hash_of(const std::string& text) {
  return to_hex(checksum(std::as_bytes(std::span(text.data(), text.size()))));
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return text.substr(0, 0);
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

Status append(DocumentTokens& out, const Tokenizer& tokenizer, std::string_view text,
              TokenizeOptions options, std::int64_t offset, std::int64_t document_end) {
  VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText part, tokenizer.tokenize(text, options));
  for (std::size_t i = 0; i < part.tokens.size(); ++i) {
    ByteRange range = part.ranges[i];
    // Template, separator and question are not part of the document; a token across its end counts
    // up to the end.
    if (offset < 0 || range.begin < 0 || range.begin + offset >= document_end) range = {};
    if (range.begin >= 0)
      range = {range.begin + offset, std::min(range.end + offset, document_end)};
    out.tokens.push_back(part.tokens[i]);
    out.ranges.push_back(range);
  }
  return {};
}

Result<DocumentTokens> tokenize_parts(const Tokenizer& tokenizer, const ChatFormat& format,
                                      std::string_view document, std::string_view tail,
                                      std::string_view closing) {
  const std::string_view body = trimmed(document);
  const std::int64_t offset = body.empty() ? 0 : body.data() - document.data();
  DocumentTokens out;
  VOLVELLE_RETURN_IF_ERROR(append(out, tokenizer, format.before_document,
                                  {.add_special = true, .parse_special = true}, -1, 0));
  out.text_begin_token = static_cast<std::int64_t>(out.tokens.size());
  const std::string content = std::string(body) + std::string(tail);
  VOLVELLE_RETURN_IF_ERROR(
      append(out, tokenizer, content, {}, offset, offset + static_cast<std::int64_t>(body.size())));
  if (!closing.empty()) {
    VOLVELLE_RETURN_IF_ERROR(
        append(out, tokenizer, closing, {.add_special = false, .parse_special = true}, -1, 0));
  }
  return out;
}

}  // namespace

std::string default_chat_format(const Model& model) {
  return render(model.info().chat_template).empty() || model.info().chat_template.empty() ? "raw"
                                                                                          : "chat";
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
  const std::string text = render(chat_template);
  const std::size_t at = text.find(kMarker);
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
                    text.substr(at + std::string_view(kMarker).size())};
}

Result<DocumentTokens> tokenize_document(const Tokenizer& tokenizer, const ChatFormat& format,
                                         std::string_view document) {
  return tokenize_parts(tokenizer, format, document, "", "");
}

Result<DocumentTokens> tokenize_conversation(const Tokenizer& tokenizer, const ChatFormat& format,
                                             std::string_view document, std::string_view question) {
  return tokenize_parts(tokenizer, format, document,
                        std::string(kQuestionSeparator) + std::string(trimmed(question)),
                        format.after_question);
}

}  // namespace volvelle
