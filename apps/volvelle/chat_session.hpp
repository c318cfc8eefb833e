// A conversation, the memory that holds it, and what can be done with both.
//
//   turn:  tokens = render(whole conversation, question);  p = common prefix with the memory
//          memory cut to p tokens;  step tokens[p:];  answer
//
// So the model always sees the rendering of the conversation as it is, however it came to be
// (answers, undo, load), and reads only what is new. Invariant: after a failure the conversation is
// as before; the memory may hold more or less than it, which the next turn puts right.
#pragma once

#include <filesystem>
#include <string>

#include "conversation.hpp"
#include "evidence.hpp"
#include "generation.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::cli {

/// What a chat runs on; all of it outlives the chat.
struct ChatMachine {
  const Model& model;
  Session& session;
  const ChatFormat& format;
  const SamplerFlags& sampling;  // prepared; turn n (from 0) draws with seed + n
  std::int64_t limit = 0;        // of tokens
  std::int64_t chunk = 256;      // tokens per step when a text is read
};

struct TurnReport {
  Generated result;
  std::int64_t n_prompt = 0;  // tokens that were read for it
  std::int64_t n_cached = 0;
  std::optional<std::uint32_t> seed;  // if anything was drawn
  ReadStatistics reads;
};

/// How full the memory is.
struct Gauge {
  std::int64_t n_tokens = 0;  // of the conversation so far
  std::int64_t limit = 0;
  std::uint64_t row_bytes = 0;
  std::string spec;
};

class ChatSession {
 public:
  ChatSession(ChatMachine machine, ContextMemory memory, Conversation conversation)
      : machine_(machine), memory_(std::move(memory)), conversation_(std::move(conversation)) {}

  const Conversation& conversation() const noexcept { return conversation_; }
  const ContextMemory& memory() const noexcept { return memory_; }
  const ChatMachine& machine() const noexcept { return machine_; }

  /// Asks and streams the answer, which becomes a turn; so does one that was interrupted, if it has
  /// any text. Context exceeded: nothing is read, and both numbers are in the error.
  Result<TurnReport> ask(const std::string& question, Console& console);
  /// Reads what the conversation holds ahead of the first question.
  Status read_ahead(Console& console);
  /// Forgets the turns; system prompt and document stay.
  void reset() { conversation_.turns.clear(); }
  /// Takes the last turn back.
  Status undo();
  Result<Gauge> gauge() const;
  /// Passages that the last question and its answer attended to, in the text of
  /// write_conversation(). Runs both once more, on a branch of the memory.
  struct Evidence {
    std::vector<Passage> passages;
    MemoryRecord record;  // text and sources
  };
  Result<Evidence> evidence(std::int64_t count);
  /// Writes a memory file that load() continues exactly.
  Result<std::uint64_t> save(const std::filesystem::path& path, Console& console);
  /// Goes on with the conversation or document of a file; on an error everything stays as it is.
  Status load(const std::filesystem::path& path, Console& console);

 private:
  Status rewind(std::int64_t length, Console& console);

  ChatMachine machine_;
  ContextMemory memory_;
  Conversation conversation_;
};

/// The conversation and the memory in a file; what does not go with the machine's model, template
/// or storage types is an error.
struct LoadedChat {
  Conversation conversation;
  ContextMemory memory;
};
Result<LoadedChat> load_chat(MemoryFile& file, const Model& model, const ChatFormat& format,
                             const std::string& name, Console& console);

}  // namespace volvelle::cli
