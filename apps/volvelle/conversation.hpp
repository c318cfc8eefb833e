// A conversation as data: a system prompt, a document and turns; as messages for the model, and as
// the text and sources of a memory file.
//
//   text = system, document, question 1, answer 1, question 2, ... with a blank line between them
//
// Names of sources say which part is which: "system", "user", "assistant", and "document: NAME" for
// each file of the document. The document and the first question are one message, as in fold and
// ask. Invariant: contents carry no white space at their ends.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "volvelle/memory/memory_file.hpp"
#include "volvelle/runtime/chat_format.hpp"

namespace volvelle::cli {

struct Turn {
  std::string question;
  std::string answer;
};

struct Conversation {
  std::string system;                        // may be empty
  std::string document;                      // may be empty
  std::vector<TextSource> document_sources;  // ranges in `document`
  std::vector<Turn> turns;

  bool empty() const { return system.empty() && document.empty() && turns.empty(); }
};

/// A document with its sources, as the start of a conversation.
Conversation conversation_about(const std::string& text, std::span<const TextSource> sources);

/// The conversation in a memory of either kind; one that does not fit its sources is an error.
Result<Conversation> read_conversation(const MemoryRecord& record);
/// Puts text, sources and kind into the record.
void write_conversation(const Conversation& conversation, MemoryRecord& record);

/// What the model sees when it is asked `question` next.
Result<DocumentTokens> tokenize_question(const Tokenizer& tokenizer, const ChatFormat& format,
                                         const Conversation& conversation,
                                         const std::string& question);
/// What it has seen so far: everything up to the last token of the last content. Ranges refer to
/// the text of write_conversation().
Result<DocumentTokens> tokenize_so_far(const Tokenizer& tokenizer, const ChatFormat& format,
                                       const Conversation& conversation);

}  // namespace volvelle::cli
