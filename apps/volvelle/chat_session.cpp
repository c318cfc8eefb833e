// See the header. A window may have dropped rows that a cut-back memory would need; then the
// conversation is read again from its beginning, and that is said.
#include "chat_session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/result_macros.hpp"
#include "fold.hpp"
#include "stored_memory.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

constexpr std::uint64_t kSeeds = 0xFFFFFFFF;  // the last one means "random" to the engine

Error context_full(std::int64_t n_tokens, std::int64_t limit) {
  return Error{ErrorCode::kContextExceeded,
               fmt::format("the conversation with this turn has {} tokens, more than the context "
                           "of {}: the turn was not taken; /undo drops the last turn, /reset all "
                           "of them, /save keeps the conversation",
                           n_tokens, limit)};
}

}  // namespace

Result<LoadedChat> load_chat(MemoryFile& file, const Model& model, const ChatFormat& format,
                             const std::string& name, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const ChatFormat stored, require_match(file, model, name));
  if (stored.name == "raw") {
    return Error{ErrorCode::kMismatch,
                 fmt::format("loading {}: it was folded as raw text, which has no turns: fold it "
                             "with --format chat, or use ask",
                             name)};
  }
  if (stored.chat_template != format.chat_template) {
    return Error{ErrorCode::kMismatch,
                 fmt::format("loading {}: it was made with the chat template '{}', not '{}': leave "
                             "--chat-template out, or name that one",
                             name, stored.name, format.name)};
  }
  VOLVELLE_RETURN_IF_ERROR(stored_spec(file.record()));
  VOLVELLE_ASSIGN_OR_RETURN(Conversation conversation, read_conversation(file.record()));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, restore_memory(file, console));
  return LoadedChat{std::move(conversation), std::move(memory)};
}

Status ChatSession::rewind(std::int64_t length, Console& console) {
  if (memory_.truncate(length).ok()) return {};
  VOLVELLE_ASSIGN_OR_RETURN(memory_, machine_.session.begin(memory_.spec()));
  console.note("note: the window has dropped what comes before; the conversation is read again");
  return {};
}

Result<TurnReport> ChatSession::ask(const std::string& question, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(
      const DocumentTokens prompt,
      tokenize_question(machine_.model.tokenizer(), machine_.format, conversation_, question));
  const std::int64_t n_tokens = std::ssize(prompt.tokens);
  if (n_tokens > machine_.limit) return context_full(n_tokens, machine_.limit);
  SamplerOptions options = machine_.sampling.options;
  options.seed =
      static_cast<std::uint32_t>((options.seed + std::size(conversation_.turns)) % kSeeds);
  VOLVELLE_ASSIGN_OR_RETURN(Sampler sampler, make_sampler(machine_.model, options));
  // The last token is always stepped: its logits choose the first token of the answer.
  VOLVELLE_RETURN_IF_ERROR(
      rewind(std::min(common_prefix(memory_.tokens(), prompt.tokens), n_tokens - 1), console));
  TurnReport report;
  report.seed = used_seed(options);
  machine_.session.take_read_statistics();  // of a turn that failed
  report.n_cached = memory_.length();
  report.n_prompt = n_tokens - report.n_cached;
  const auto rest = std::span(prompt.tokens).subspan(static_cast<std::size_t>(report.n_cached));
  VOLVELLE_ASSIGN_OR_RETURN(
      report.result, generate_text(machine_.session, memory_,
                                   {rest, machine_.sampling, machine_.limit}, sampler, console));
  report.reads = machine_.session.take_read_statistics();
  const Generation& generation = report.result.generation;
  if (generation.stop_reason == "interrupted" && trim_content(generation.text).empty())
    return Error{ErrorCode::kCancelled, "interrupted: the turn was not taken"};
  conversation_.turns.push_back(
      {std::string(trim_content(question)), std::string(trim_content(generation.text))});
  return report;
}

Status ChatSession::read_ahead(Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(
      const DocumentTokens all,
      tokenize_so_far(machine_.model.tokenizer(), machine_.format, conversation_));
  const std::int64_t n_tokens = std::ssize(all.tokens);
  const std::int64_t common = common_prefix(memory_.tokens(), all.tokens);
  if (common == memory_.length() && common == n_tokens) return {};
  VOLVELLE_RETURN_IF_ERROR(require_room(n_tokens, machine_.limit, machine_.model, "the text"));
  VOLVELLE_RETURN_IF_ERROR(rewind(common, console));
  const auto rest = std::span(all.tokens).subspan(static_cast<std::size_t>(memory_.length()));
  if (rest.empty()) return {};
  return read_tokens(machine_.session, memory_, rest, machine_.chunk, console);
}

Status ChatSession::undo() {
  if (conversation_.turns.empty())
    return Error{ErrorCode::kInvalidArgument, "/undo: there is no turn to take back"};
  conversation_.turns.pop_back();
  return {};
}

Result<Gauge> ChatSession::gauge() const {
  VOLVELLE_ASSIGN_OR_RETURN(
      const DocumentTokens all,
      tokenize_so_far(machine_.model.tokenizer(), machine_.format, conversation_));
  return Gauge{std::ssize(all.tokens), machine_.limit, memory_.row_bytes_used(),
               to_string(memory_.spec())};
}

Result<ChatSession::Evidence> ChatSession::evidence(std::int64_t count) {
  const auto nothing = [](const char* why) {
    return Error{ErrorCode::kInvalidArgument, std::string("/evidence: ") + why};
  };
  if (conversation_.turns.empty()) return nothing("nothing was asked yet");
  Conversation earlier = conversation_;
  earlier.turns.pop_back();
  if (earlier.empty()) return nothing("nothing was said before the question");
  VOLVELLE_ASSIGN_OR_RETURN(const DocumentTokens said,
                            tokenize_so_far(machine_.model.tokenizer(), machine_.format, earlier));
  const std::int64_t begin = said.text_begin_token;
  const std::int64_t end = common_prefix(memory_.tokens(), said.tokens);
  if (end <= begin || end == memory_.length()) return nothing("the turn is no longer in memory");
  const std::vector<TokenId> turn(memory_.tokens().begin() + end, memory_.tokens().end());
  ContextMemory branch = memory_.clone();
  VOLVELLE_RETURN_IF_ERROR(branch.truncate(end));
  VOLVELLE_ASSIGN_OR_RETURN(const EvidenceWatch watch,
                            EvidenceWatch::start(machine_.session, branch, begin, end));
  VOLVELLE_RETURN_IF_ERROR(machine_.session.step(branch, turn, Logits::kNone));
  Evidence found;
  write_conversation(earlier, found.record);
  VOLVELLE_ASSIGN_OR_RETURN(found.passages, watch.passages(said.ranges, found.record.text, count));
  return found;
}

// The memory is brought to exactly what the conversation holds: turns that were taken back must not
// be in the file.
Result<std::uint64_t> ChatSession::save(const std::filesystem::path& path, Console& console) {
  if (conversation_.empty())
    return Error{ErrorCode::kInvalidArgument, "nothing was said yet: there is nothing to save"};
  VOLVELLE_ASSIGN_OR_RETURN(DocumentTokens all, tokenize_so_far(machine_.model.tokenizer(),
                                                                machine_.format, conversation_));
  const std::int64_t common = common_prefix(memory_.tokens(), all.tokens);
  if (memory_.length() > common && !memory_.truncate(common).ok())
    VOLVELLE_RETURN_IF_ERROR(read_ahead(console));
  const std::size_t n_tokens = memory_.tokens().size();
  MemoryRecord record =
      make_record(machine_.model, machine_.format, memory_.spec(), machine_.chunk);
  write_conversation(conversation_, record);
  record.tokens.assign(memory_.tokens().begin(), memory_.tokens().end());
  all.ranges.resize(n_tokens);
  record.ranges = std::move(all.ranges);
  record.text_begin_token = std::min(all.text_begin_token, static_cast<std::int64_t>(n_tokens));
  return save_memory(path, record, memory_);
}

Status ChatSession::load(const std::filesystem::path& path, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::open(path));
  VOLVELLE_ASSIGN_OR_RETURN(
      LoadedChat loaded, load_chat(file, machine_.model, machine_.format, path.string(), console));
  if (loaded.memory.layout() != machine_.session.layout()) {
    return Error{ErrorCode::kMismatch,
                 fmt::format("loading {}: its memory '{}' has other storage types than this chat, "
                             "'{}': start volvelle chat --load with it",
                             path.string(), file.record().spec, to_string(memory_.spec()))};
  }
  memory_ = std::move(loaded.memory);
  conversation_ = std::move(loaded.conversation);
  return {};
}

}  // namespace volvelle::cli
