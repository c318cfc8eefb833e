// `volvelle chat`: a conversation, one line a turn, from a terminal or a pipe.
//
// Answers go to stdout, everything else to stderr. Ctrl-C stops an answer; at the prompt it ends
// the chat, as the end of the input does. Cost of a turn: what is new in it and the answer.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/result_macros.hpp"
#include "certificate.hpp"
#include "chat_session.hpp"
#include "fold.hpp"
#include "line_reader.hpp"
#include "output_path.hpp"
#include "signals.hpp"
#include "std_streams.hpp"
#include "stored_memory.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

constexpr int kInterrupted = 130;

struct ChatFlags {
  ModelFlags model;
  MemoryFlags memory;
  SamplerFlags sampling;
  std::vector<std::string> files;
  std::string load;
  std::string save;
  std::string system;
  std::string chat_template;
};

constexpr std::array kHelp{
    "/help          this list",
    "/undo          take the last turn back",
    "/reset         forget all turns; system prompt and document stay",
    "/memory        how full the memory is",
    "/evidence      what the last question and answer attended to",
    "/save [FILE]   write the conversation to FILE (or that of --save)",
    "/load FILE     go on with the conversation or document of FILE",
    "/exit          end, as Ctrl-D does",
    "//text         say \"/text\"; a line that ends with \\ goes on in the next one",
};

void declare(CLI::App& app, ChatFlags& flags) {
  flags.sampling.n_predict = -1;
  add_model_flags(app, flags.model, ModelFlag::kOptional);
  add_memory_flags(app, flags.memory);
  add_sampler_flags(app, flags.sampling);
  app.add_option("-f,--file", flags.files,
                 "Document to talk about, or the name of one in the cache folder's texts/; several "
                 "are joined with a blank line")
      ->allow_extra_args(false);
  app.add_option("--load", flags.load, "Go on with a conversation or a folded document");
  app.add_option("--save", flags.save, "Write the conversation to this memory file at the end");
  app.add_option("--system-prompt", flags.system, "-sys: what the model is told first");
  app.add_option("--chat-template", flags.chat_template,
                 "Built-in template to use instead of the model's own, e.g. chatml");
  std::string help = "Lines that begin with / are commands:";
  for (const char* const line : kHelp) help.append("\n  ").append(line);
  app.footer(help + "\nWith --json every turn is one object on its own line.");
}

Status check_flags(const ChatFlags& flags) {
  if (flags.load.empty() && flags.model.model.empty())
    return usage_error("-m is required (or --load with a memory that knows its model)");
  if (!flags.load.empty() && !flags.files.empty()) {
    return usage_error(
        "-f contradicts --load, whose document is in the file: fold --append adds "
        "to one");
  }
  if (flags.chat_template == "raw")
    return usage_error("--chat-template raw: raw text has no turns; run continues a text");
  if (flags.system.empty()) return {};
  const Status usable = check_text(flags.system, "the system prompt");
  return usable.ok() ? Status() : Status(usage_error(usable.error().message));
}

// What the flags and --load say together.
struct Start {
  std::optional<MemoryFile> file;
  fs::path model;
  MemorySpec spec;
  TextSet document;
};

Result<Start> find_start(const ChatFlags& flags, Console& console) {
  Start start;
  if (flags.load.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(start.spec, effective_spec(flags.memory));
    VOLVELLE_ASSIGN_OR_RETURN(start.document, read_texts(flags.files, console));
    VOLVELLE_ASSIGN_OR_RETURN(start.model, find_input(flags.model.model, "models"));
    return start;
  }
  VOLVELLE_ASSIGN_OR_RETURN(start.file, MemoryFile::open(flags.load));
  const MemoryRecord& record = start.file->record();
  VOLVELLE_ASSIGN_OR_RETURN(start.spec, effective_spec(flags.memory, record.spec));
  if (to_string(start.spec) != record.spec) {
    return usage_error(
        fmt::format("the memory '{}' contradicts {}, which has '{}': leave it out, "
                    "or fold --from {} -o NEW first",
                    to_string(start.spec), flags.load, record.spec, flags.load));
  }
  if (!flags.chat_template.empty() && flags.chat_template != record.chat_format) {
    return usage_error(
        fmt::format("--chat-template {} contradicts {}, which was made with '{}': "
                    "leave it out",
                    flags.chat_template, flags.load, record.chat_format));
  }
  VOLVELLE_ASSIGN_OR_RETURN(start.model, find_model(flags.model.model, record, flags.load));
  return start;
}

Result<ChatFormat> choose_format(const ChatFlags& flags, const Start& start, const Model& model) {
  if (start.file) return require_match(*start.file, model, flags.load);
  return make_chat_format(model, flags.chat_template.empty() ? "chat" : flags.chat_template);
}

// The conversation that the chat begins with, and the memory as far as there is one.
Result<LoadedChat> begin_chat(const ChatFlags& flags, Start& start, const Session& session,
                              const ChatFormat& format, Console& console) {
  const std::string system(trim_content(flags.system));
  if (!start.file) {
    Conversation conversation = conversation_about(start.document.text, start.document.sources);
    conversation.system = system;
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(start.spec));
    return LoadedChat{std::move(conversation), std::move(memory)};
  }
  VOLVELLE_ASSIGN_OR_RETURN(LoadedChat loaded,
                            load_chat(*start.file, session.model(), format, flags.load, console));
  if (system.empty() || system == loaded.conversation.system) return loaded;
  if (start.file->record().kind == kConversationMemory) {
    return usage_error(
        fmt::format("-sys contradicts {}, a conversation that has begun without it: "
                    "leave it out",
                    flags.load));
  }
  loaded.conversation.system = system;
  console.warn(fmt::format("the system prompt stands before the text of {}, which is read again",
                           flags.load));
  return loaded;
}

// The loop around a ChatSession.
class Chat {
 public:
  Chat(ChatSession& session, const std::string& save_path, Console& console)
      : session_(session),
        save_path_(save_path),
        console_(console),
        terminal_(isatty(STDIN_FILENO) == 1) {}

  // Until the input ends, /exit or a signal.
  void run();
  // At a terminal people see what failed, and the chat as a whole did not.
  int exit_code() const {
    if (interrupted_) return kInterrupted;
    return save_failed_ || (failed_ && !terminal_) ? 1 : 0;
  }
  void save_at_end();

 private:
  void take_line(const std::string& line);
  void take_turn(const std::string& text);
  Status take_command(const std::string& name, const std::string& argument);
  Status show_memory();
  Status show_evidence();
  Status save(const std::string& name);
  void report(const Error& error);
  Json turn_json(const TurnReport& turn) const;

  ChatSession& session_;
  const std::string& save_path_;  // of --save
  Console& console_;
  bool terminal_;
  bool failed_ = false;
  bool save_failed_ = false;
  bool interrupted_ = false;
  bool ended_ = false;
};

void Chat::run() {
  LineReader reader(console_.cancel());
  std::string line;
  while (!ended_) {
    if (terminal_) write_stderr("> ");
    const LineReader::Outcome outcome = reader.read(line);
    if (outcome != LineReader::Outcome::kLine) {
      if (terminal_) write_stderr("\n");
      interrupted_ = outcome == LineReader::Outcome::kCancelled;
      if (outcome == LineReader::Outcome::kFailed)
        report({ErrorCode::kIo, "reading stdin failed: the chat ends"});
      return;
    }
    take_line(line);
    if (take_interrupt() == Interrupt::kEnd) {
      interrupted_ = true;
      return;
    }
  }
}

void Chat::report(const Error& error) {
  failed_ = true;
  console_.error(error);
  if (!console_.json()) return;
  const Json object = {{"code", to_string(error.code)}, {"message", error.message}};
  console_.print(to_line({{"error", object}}) + "\n");
}

void Chat::take_line(const std::string& line) {
  const std::string_view text = trim_content(line);
  if (text.empty()) return;
  if (text[0] != '/' || text.starts_with("//"))
    return take_turn(std::string(text[0] == '/' ? text.substr(1) : text));
  const std::size_t space = std::min(text.find_first_of(" \t\n"), text.size());
  const Status done = take_command(std::string(text.substr(0, space)),
                                   std::string(trim_content(text.substr(space))));
  if (!done.ok()) report(done.error());
}

Status Chat::take_command(const std::string& name, const std::string& argument) {
  const bool takes_file = name == "/save" || name == "/load";
  const std::array known{"/help",     "/undo", "/reset", "/memory",
                         "/evidence", "/exit", "/save",  "/load"};
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{} is not a command: /help lists them, and //text says \"/text\"", name)};
  }
  if (!takes_file && !argument.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} takes no argument, got '{}'", name, argument)};
  }
  if (name == "/exit") ended_ = true;
  if (name == "/undo") return session_.undo();
  if (name == "/memory") return show_memory();
  if (name == "/evidence") return show_evidence();
  if (name == "/reset") session_.reset();
  if (name == "/save") return save(argument);
  if (name == "/help") {
    for (const char* const line : kHelp) console_.note(line);
  }
  if (name != "/load") return {};
  if (argument.empty())
    return Error{ErrorCode::kInvalidArgument, "/load needs the name of a memory file"};
  VOLVELLE_RETURN_IF_ERROR(session_.load(argument, console_));
  console_.note(fmt::format("loaded {}: {} turns, memory '{}'", argument,
                            session_.conversation().turns.size(),
                            to_string(session_.memory().spec())));
  return {};
}

Status Chat::show_memory() {
  VOLVELLE_ASSIGN_OR_RETURN(const Gauge gauge, session_.gauge());
  console_.note(fmt::format(
      "memory '{}': {} of {} tokens ({:.1f} %), {} turns, {} of rows", gauge.spec, gauge.n_tokens,
      gauge.limit, 100.0 * static_cast<double>(gauge.n_tokens) / static_cast<double>(gauge.limit),
      session_.conversation().turns.size(), human_bytes(gauge.row_bytes)));
  return {};
}

Status Chat::show_evidence() {
  constexpr std::int64_t kPassages = 3;
  VOLVELLE_ASSIGN_OR_RETURN(const auto found, session_.evidence(kPassages));
  const auto& [passages, record] = found;
  if (console_.json()) {
    const Json rows = evidence_json(passages, record.text, record.sources);
    console_.print(to_line({{"evidence", rows}}) + "\n");
    return {};
  }
  console_.print(evidence_text(passages, record.text, record.sources, stdout_has_colour()));
  return {};
}

Status Chat::save(const std::string& name) {
  const std::string path = name.empty() ? save_path_ : name;
  if (path.empty())
    return Error{ErrorCode::kInvalidArgument, "/save needs the name of a file, or --save"};
  VOLVELLE_RETURN_IF_ERROR(check_output(path, {session_.machine().model.info().path}));
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t bytes, session_.save(path, console_));
  console_.note(fmt::format("wrote {}, {}", path, human_bytes(bytes)));
  return {};
}

void Chat::save_at_end() {
  if (save_path_.empty()) return;
  if (session_.conversation().empty()) {
    console_.note(fmt::format("nothing was said: {} is not written", save_path_));
    return;
  }
  const Status saved = save(save_path_);
  if (saved.ok()) return;
  save_failed_ = true;
  report(saved.error());
}

Json Chat::turn_json(const TurnReport& turn) const {
  const Generation& generation = turn.result.generation;
  return {{"turn", session_.conversation().turns.size()},
          {"answer", generation.text},
          {"n_prompt", turn.n_prompt},
          {"n_cached", turn.n_cached},
          {"n_predicted", generation.n_predicted},
          {"n_tokens", session_.memory().length()},
          {"spec", to_string(session_.memory().spec())},
          {"engine", engine_version()},
          {"stop_reason", generation.stop_reason},
          {"stop", text_or_null(generation.stop_string)},
          {"seed", json_or_null(turn.seed)},
          {"certificate", certificate_json(session_.memory().spec(), turn.reads)},
          {"timings",
           {{"prompt_ms", turn.result.prompt_ms}, {"predicted_ms", turn.result.predicted_ms}}}};
}

void Chat::take_turn(const std::string& text) {
  const Status usable = check_text(text, "the line");
  if (!usable.ok()) return report(usable.error());
  const Result<TurnReport> turn = session_.ask(text, console_);
  console_.end_progress();
  if (!turn.ok()) return report(turn.error());
  console_.stream("\n");
  if (console_.json()) console_.print(to_line(turn_json(*turn)) + "\n");
  const MemorySpec& spec = session_.memory().spec();
  if (!console_.json() && spec.topk) console_.note(certificate_text(spec, turn->reads));
  const std::string& why = turn->result.generation.stop_reason;
  if (why == "interrupted") console_.note("interrupted: what was said so far is kept");
  if (why == "context") {
    console_.note(fmt::format("the context of {} tokens is full: /undo or /reset make room",
                              session_.machine().limit));
  }
}

Result<Report> run(const ChatFlags& flags, Console& console) {
  VOLVELLE_RETURN_IF_ERROR(check_flags(flags));
  SamplerFlags sampling = flags.sampling;
  VOLVELLE_RETURN_IF_ERROR(prepare_sampling(sampling, console));
  VOLVELLE_ASSIGN_OR_RETURN(Start start, find_start(flags, console));
  std::vector<fs::path> inputs = start.document.paths;
  inputs.push_back(start.model);
  if (!flags.save.empty()) VOLVELLE_RETURN_IF_ERROR(check_output(flags.save, inputs));

  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(start.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  VOLVELLE_ASSIGN_OR_RETURN(const ChatFormat format, choose_format(flags, start, model));
  warn_of_unused(sampling, model, console);
  VOLVELLE_RETURN_IF_ERROR(make_sampler(model, sampling.options));
  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, start.spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(LoadedChat begun, begin_chat(flags, start, session, format, console));
  ChatSession chat({model, session, format, sampling, limit}, std::move(begun.memory),
                   std::move(begun.conversation));
  VOLVELLE_RETURN_IF_ERROR(chat.read_ahead(console));
  console.end_progress();
  console.note(fmt::format("memory '{}', {} of {} tokens used, template '{}'; /help lists commands",
                           to_string(start.spec), chat.memory().length(), limit, format.name));
  survive_interrupts();
  Chat loop(chat, flags.save, console);
  loop.run();
  loop.save_at_end();
  return Report{{}, "", loop.exit_code()};
}

}  // namespace

void add_chat(CLI::App& parent, Selected& selected) {
  add_command<ChatFlags>(parent, selected, "chat", "Talk with a model, and about documents",
                         declare, run);
}

}  // namespace volvelle::cli
