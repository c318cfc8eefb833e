// Templates are rendered by the engine around a marker; what stands before and after it is the
// format. The whole rendering is tokenized in one call, as any other program would do it, unless
// document or question contain the text of a control token: then they are tokenized apart, as plain
// text. fold and ask take the same path for the same document.
#include "volvelle/runtime/chat_format.hpp"

#include <algorithm>

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

/// What is tokenized: [before] body tail [closing]. The body is the document, `offset` its place in
/// the caller's text.
struct Rendering {
  std::string_view before;
  std::string_view body;
  std::string_view tail;
  std::string_view closing;
  std::int64_t offset = 0;
};

/// Adds tokens of a piece of the rendering whose body begins at byte `body_begin` of the piece (or
/// that has no body). A token across a border counts with what it has inside the body.
void append(DocumentTokens& out, const TokenizedText& piece, std::int64_t body_begin,
            const Rendering& text) {
  const std::int64_t body_end = body_begin + static_cast<std::int64_t>(text.body.size());
  for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
    const ByteRange range = piece.ranges[i];
    const bool inside = range.begin >= 0 && range.end > body_begin && range.begin < body_end;
    out.tokens.push_back(piece.tokens[i]);
    out.ranges.push_back(
        inside ? ByteRange{std::max(range.begin, body_begin) - body_begin + text.offset,
                           std::min(range.end, body_end) - body_begin + text.offset}
               : ByteRange{});
  }
}

/// The usual case: one call over the whole rendering, so tokens that cross its borders, and spaces
/// that a tokenizer puts behind control tokens, come out as in any other program.
Result<DocumentTokens> tokenize_whole(const Tokenizer& tokenizer, const Rendering& text) {
  std::string rendered(text.before);
  rendered.append(text.body).append(text.tail).append(text.closing);
  VOLVELLE_ASSIGN_OR_RETURN(
      const TokenizedText tokens,
      tokenizer.tokenize(rendered, {.add_special = true, .parse_special = true}));
  DocumentTokens out;
  const auto body_begin = static_cast<std::int64_t>(text.before.size());
  append(out, tokens, body_begin, text);
  const auto first = std::find_if(tokens.ranges.begin(), tokens.ranges.end(),
                                  [&](const ByteRange& range) { return range.end > body_begin; });
  out.text_begin_token = first - tokens.ranges.begin();
  return out;
}

/// For a document or question that contains the text of a control token: that text stays plain, so
/// it can not open or close a turn.
Result<DocumentTokens> tokenize_shielded(const Tokenizer& tokenizer, const Rendering& text) {
  DocumentTokens out;
  const auto add = [&](std::string_view piece, TokenizeOptions options, bool has_body) -> Status {
    VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText tokens, tokenizer.tokenize(piece, options));
    append(out, tokens, has_body ? 0 : static_cast<std::int64_t>(piece.size()), text);
    return {};
  };
  const std::string content = std::string(text.body).append(text.tail);
  VOLVELLE_RETURN_IF_ERROR(add(text.before, {.add_special = true, .parse_special = true}, false));
  out.text_begin_token = static_cast<std::int64_t>(out.tokens.size());
  VOLVELLE_RETURN_IF_ERROR(add(content, {}, true));
  if (!text.closing.empty()) {
    VOLVELLE_RETURN_IF_ERROR(add(text.closing, {.parse_special = true}, false));
  }
  return out;
}

Result<DocumentTokens> tokenize_rendering(const Tokenizer& tokenizer, const Rendering& text) {
  const std::string content = std::string(text.body).append(text.tail);
  VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText plain, tokenizer.tokenize(content, {}));
  VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText parsed,
                            tokenizer.tokenize(content, {.parse_special = true}));
  return plain.tokens == parsed.tokens ? tokenize_whole(tokenizer, text)
                                       : tokenize_shielded(tokenizer, text);
}

std::int64_t offset_in(std::string_view document, std::string_view body) {
  return body.empty() ? 0 : body.data() - document.data();
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
  const std::string_view body = trimmed(document);
  return tokenize_rendering(tokenizer,
                            {format.before_document, body, {}, {}, offset_in(document, body)});
}

Result<DocumentTokens> tokenize_conversation(const Tokenizer& tokenizer, const ChatFormat& format,
                                             std::string_view document, std::string_view question) {
  const std::string_view body = trimmed(document);
  const std::string tail = std::string(kQuestionSeparator) + std::string(trimmed(question));
  return tokenize_rendering(tokenizer, {format.before_document, body, tail, format.after_question,
                                        offset_in(document, body)});
}

}  // namespace volvelle
