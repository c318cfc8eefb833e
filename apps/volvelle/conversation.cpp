// Writing and reading are inverse to each other; reading checks that, so a text that was put
// together differently is refused.
#include "conversation.hpp"

#include <algorithm>

#include "base/result_macros.hpp"

namespace volvelle::cli {

namespace {

constexpr const char* kSystem = "system";
constexpr const char* kUser = "user";
constexpr const char* kAssistant = "assistant";
constexpr std::string_view kDocument = "document: ";

// Puts parts behind each other and remembers where they are.
class Transcript {
 public:
  ByteRange add(std::string_view part) {
    if (!text.empty()) text += kQuestionSeparator;
    const std::int64_t begin = std::ssize(text);
    text += part;
    return {begin, std::ssize(text)};
  }
  void add(const char* name, std::string_view part) { sources.push_back({name, add(part)}); }

  std::string text;
  std::vector<TextSource> sources;
};

std::string_view part_of(const std::string& text, ByteRange range) {
  return std::string_view(text).substr(static_cast<std::size_t>(range.begin),
                                       static_cast<std::size_t>(range.end - range.begin));
}

// The messages so far, and `question` if there is one; offsets as in the transcript.
std::vector<ChatMessage> messages_of(const Conversation& conversation,
                                     const std::optional<std::string>& question) {
  std::vector<ChatMessage> messages;
  Transcript transcript;
  if (!conversation.system.empty())
    messages.push_back({kSystem, conversation.system, transcript.add(conversation.system).begin});
  std::string opening;  // what stands before the first question in its message
  std::int64_t opening_begin = 0;
  if (!conversation.document.empty()) {
    opening = conversation.document;
    opening_begin = transcript.add(conversation.document).begin;
  }
  const auto ask = [&](const std::string& text) {
    const std::int64_t begin = transcript.add(text).begin;
    if (opening.empty()) return messages.push_back({kUser, text, begin});
    messages.push_back({kUser, opening + std::string(kQuestionSeparator) + text, opening_begin});
    opening.clear();
  };
  for (const Turn& turn : conversation.turns) {
    ask(turn.question);
    messages.push_back({kAssistant, turn.answer, transcript.add(turn.answer).begin});
  }
  if (question) ask(std::string(trim_content(*question)));
  if (!opening.empty()) messages.push_back({kUser, opening, opening_begin});
  return messages;
}

Error no_conversation(const char* what) {
  return {ErrorCode::kCorrupt, std::string("reading the conversation: ") + what +
                                   "; the file was not written by chat --save"};
}

}  // namespace

Conversation conversation_about(const std::string& text, std::span<const TextSource> sources) {
  Conversation conversation;
  const std::string_view document = trim_content(text);
  conversation.document = document;
  const std::int64_t begin = document.empty() ? 0 : document.data() - text.data();
  for (TextSource source : sources) {
    source.range.begin = std::clamp(source.range.begin - begin, {}, std::ssize(document));
    source.range.end = std::clamp(source.range.end - begin, {}, std::ssize(document));
    conversation.document_sources.push_back(std::move(source));
  }
  // Sources that do not reach from end to end could not tell later what the document was.
  auto& kept = conversation.document_sources;
  const bool whole = !kept.empty() && kept.front().range.begin == 0 &&
                     kept.back().range.end == std::ssize(document);
  if (!whole && !document.empty()) kept = {{"text", {0, std::ssize(document)}}};
  return conversation;
}

void write_conversation(const Conversation& conversation, MemoryRecord& record) {
  Transcript transcript;
  if (!conversation.system.empty()) transcript.add(kSystem, conversation.system);
  if (!conversation.document.empty()) {
    const std::int64_t begin = transcript.add(conversation.document).begin;
    for (const auto& [name, range] : conversation.document_sources) {
      transcript.sources.push_back(
          {std::string(kDocument) + name, {range.begin + begin, range.end + begin}});
    }
  }
  for (const Turn& turn : conversation.turns) {
    transcript.add(kUser, turn.question);
    transcript.add(kAssistant, turn.answer);
  }
  record.kind = kConversationMemory;
  record.text = std::move(transcript.text);
  record.sources = std::move(transcript.sources);
}

Result<Conversation> read_conversation(const MemoryRecord& record) {
  if (record.kind == kDocumentMemory) return conversation_about(record.text, record.sources);
  Conversation conversation;
  ByteRange document;
  bool answered = true;
  for (const auto& [name, range] : record.sources) {
    const std::string_view part = part_of(record.text, range);
    if (name.starts_with(kDocument)) {
      if (document.begin < 0) document.begin = range.begin;
      document.end = range.end;
      conversation.document_sources.push_back(
          {name.substr(kDocument.size()),
           {range.begin - document.begin, range.end - document.begin}});
    } else if (name == kSystem) {
      conversation.system = part;
    } else if (name == kUser && answered) {
      conversation.turns.push_back({std::string(part), {}});
      answered = false;
    } else if (name == kAssistant && !answered) {
      conversation.turns.back().answer = part;
      answered = true;
    } else {
      return no_conversation("its turns are out of order");
    }
  }
  if (document.begin >= 0) conversation.document = part_of(record.text, document);
  MemoryRecord again;
  write_conversation(conversation, again);
  const bool same = answered && again.text == record.text && again.sources == record.sources;
  if (!same) return no_conversation("its parts do not make up its text");
  return conversation;
}

Result<DocumentTokens> tokenize_question(const Tokenizer& tokenizer, const ChatFormat& format,
                                         const Conversation& conversation,
                                         const std::string& question) {
  return tokenize_messages(tokenizer, format, messages_of(conversation, question), true);
}

Result<DocumentTokens> tokenize_so_far(const Tokenizer& tokenizer, const ChatFormat& format,
                                       const Conversation& conversation) {
  const std::vector<ChatMessage> messages = messages_of(conversation, std::nullopt);
  if (messages.empty()) return DocumentTokens{};
  VOLVELLE_ASSIGN_OR_RETURN(DocumentTokens tokens,
                            tokenize_messages(tokenizer, format, messages, false));
  while (!tokens.ranges.empty() && tokens.ranges.back().begin < 0) {
    tokens.ranges.pop_back();
    tokens.tokens.pop_back();
  }
  tokens.text_begin_token = std::min(tokens.text_begin_token, std::ssize(tokens.tokens));
  return tokens;
}

}  // namespace volvelle::cli
