// `volvelle fold`: reads a text once and saves the memory.
//
//   memory_0 = empty;  memory_{t+1} = step(memory_t, chunk_t);  file = memory_N
//
// A memory that keeps everything is written straight into the mapped file while it is folded, so
// its rows never exist twice; a windowed one is saved at the end. The old file is replaced only
// when the new one is complete. Cost: one pass of the model over the text.
#include "fold.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/result_macros.hpp"
#include "conversation.hpp"
#include "output_path.hpp"
#include "stored_memory.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

// Tokens that should stay free for a question and its answer.
constexpr std::int64_t kRoomForAnswer = 64;
constexpr std::int64_t kDefaultChunk = 256;

void declare(CLI::App& app, FoldFlags& flags) {
  add_model_flags(app, flags.model, ModelFlag::kOptional);
  add_memory_flags(app, flags.memory);
  add_calibration_flag(app, flags.memory);
  app.add_option("-f,--file", flags.files,
                 "Text, or the name of one in the cache folder's texts/; several are joined with a "
                 "blank line")
      ->allow_extra_args(false);
  app.add_option("-o,--output", flags.output, "Memory file to write")->required();
  app.add_option("--chunk", flags.chunk, "Tokens per step of the fold (default 256)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app.add_option("--format", flags.format,
                 "chat: as the opening of a conversation (default if the model has a known chat "
                 "template); raw: the text alone")
      ->check(CLI::IsMember({"chat", "raw"}));
  app.add_option("--chat-template", flags.chat_template, "Built-in template to use, e.g. chatml");
  app.add_flag("--append", flags.append,
               "Put the text behind that of the memory -o, as if both had been folded at once");
  app.add_option("--from", flags.from,
                 "Fold the text of this memory again, e.g. with another -m or --memory");
}

Status check_flags(const FoldFlags& flags) {
  if (!flags.chat_template.empty() && flags.format == "raw") {
    return usage_error("--chat-template contradicts --format raw: use one of the two");
  }
  if (flags.append && !flags.from.empty()) {
    return usage_error("--append and --from exclude each other: --from makes a new memory");
  }
  if (!flags.from.empty() && !flags.files.empty()) {
    return usage_error(
        "-f contradicts --from, which takes the text from the memory: fold --from "
        "first, then -f with --append");
  }
  if (flags.append && !flags.memory.calibration.empty()) {
    return usage_error(
        "--calibration is for new memories; with --append the codes stay what they are");
  }
  const bool is_new = !flags.append && flags.from.empty();
  if (is_new && flags.model.model.empty()) return usage_error("-m is required");
  if (flags.from.empty() && flags.files.empty()) return usage_error("-f is required");
  return {};
}

}  // namespace

MemoryRecord make_record(const Model& model, const ChatFormat& format, const MemorySpec& spec,
                         std::int64_t chunk) {
  const ModelInfo& info = model.info();
  MemoryRecord record;
  record.spec = to_string(spec);
  record.engine = engine_version();
  record.model_path = info.path.string();
  record.model_name = info.name;
  record.model_fingerprint = info.fingerprint;
  record.tokenizer_hash = info.tokenizer_hash;
  record.rope = info.rope.describe();
  record.chat_format = format.name;
  record.template_hash = format.template_hash;
  record.chunk = chunk;
  return record;
}

namespace {

Result<DocumentTokens> tokens_of(const MemoryRecord& record, const Model& model,
                                 const ChatFormat& format) {
  if (record.kind != kConversationMemory)
    return tokenize_document(model.tokenizer(), format, record.text);
  VOLVELLE_ASSIGN_OR_RETURN(const Conversation conversation, read_conversation(record));
  return tokenize_so_far(model.tokenizer(), format, conversation);
}

}  // namespace

Status tokenize_text(MemoryRecord& record, const Model& model, const ChatFormat& format,
                     std::int64_t limit, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(DocumentTokens document, tokens_of(record, model, format));
  const std::int64_t n_tokens = std::ssize(document.tokens);
  VOLVELLE_RETURN_IF_ERROR(require_room(n_tokens, limit, model, "the text"));
  if (n_tokens + kRoomForAnswer > limit) {
    console.warn(fmt::format("only {} tokens are left for question and answer ({} of {} used)",
                             limit - n_tokens, n_tokens, limit));
  }
  record.tokens = std::move(document.tokens);
  record.ranges = std::move(document.ranges);
  record.text_begin_token = document.text_begin_token;
  return {};
}

namespace {

Json sources_json(const MemoryRecord& record) {
  Json sources = Json::array();
  for (const auto& [name, range] : record.sources) {
    sources.push_back({{"name", name}, {"begin", range.begin}, {"end", range.end}});
  }
  return sources;
}

// With an index the size of the file is known only when the rows are: read into RAM, then save.
Result<Folded> fold_with_index(Session& session, ContextMemory memory, const MemoryRecord& record,
                               const fs::path& output, Console& console) {
  Folded folded;
  const auto start = std::chrono::steady_clock::now();
  VOLVELLE_RETURN_IF_ERROR(read_tokens(session, memory, record.tokens, record.chunk, console));
  VOLVELLE_RETURN_IF_ERROR(session.prepare_index(memory));
  folded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  folded.kv_bytes = memory.row_bytes_used();
  VOLVELLE_ASSIGN_OR_RETURN(folded.file_bytes, save_memory(output, record, memory));
  return folded;
}

// Rows that are never dropped go straight into the file; those of windowed layers are copied at the
// end. The whole file is reserved first, so a full disk is found before the work.
Result<Folded> fold_to_file(Session& session, ContextMemory memory, const MemoryRecord& record,
                            const fs::path& output, Console& console) {
  if (memory.index() != nullptr)
    return fold_with_index(session, std::move(memory), record, output, console);
  const std::span<const WindowRule> rules = memory.grouping().rules;
  VOLVELLE_ASSIGN_OR_RETURN(
      MemoryFileWriter writer,
      MemoryFileWriter::create(output, record, session.layout(),
                               positions_after(memory.grouping(), std::ssize(record.tokens))));
  for (int group = 0; group < std::ssize(rules); ++group) {
    if (rules[static_cast<std::size_t>(group)].drops) continue;
    VOLVELLE_RETURN_IF_ERROR(memory.write_into(group, writer.rows(group)));
  }
  Folded folded;
  const auto start = std::chrono::steady_clock::now();
  VOLVELLE_RETURN_IF_ERROR(read_tokens(session, memory, record.tokens, record.chunk, console));
  folded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (int group = 0; group < std::ssize(rules); ++group) {
    if (!rules[static_cast<std::size_t>(group)].drops) continue;
    VOLVELLE_RETURN_IF_ERROR(writer.copy_rows(memory, group));
  }
  folded.kv_bytes = writer.row_bytes();
  VOLVELLE_ASSIGN_OR_RETURN(folded.file_bytes, writer.finish(console.progress_sink()));
  return folded;
}

}  // namespace

Report report_fold(const MemoryRecord& record, const Folded& folded, const std::string& output) {
  const std::int64_t n_tokens = std::ssize(record.tokens);
  const std::int64_t n_read = n_tokens - folded.n_cached;
  const std::int64_t depth = (n_tokens + record.chunk - 1) / record.chunk;
  const double rate = n_read / folded.seconds;
  Report report;
  report.json = {{"n_tokens", n_tokens},
                 {"n_cached", folded.n_cached},
                 {"chunk", record.chunk},
                 {"depth", depth},
                 {"kv_bytes", folded.kv_bytes},
                 {"file_bytes", folded.file_bytes},
                 {"seconds", folded.seconds},
                 {"tokens_per_second", rate},
                 {"spec", record.spec},
                 {"format", record.chat_format},
                 {"engine", record.engine},
                 {"model_fingerprint", record.model_fingerprint},
                 {"sources", sources_json(record)},
                 {"file", output}};
  if (folded.n_cached > 0)
    report.text = fmt::format("appended to a memory of {} tokens\n", folded.n_cached);
  report.text += fmt::format(
      "folded {} tokens in {} chunks of {}, {:.1f} s, {:.0f} tokens/s\n"
      "memory '{}', format {}, {} of rows\n"
      "wrote {}, {}\n",
      n_read, (n_read + record.chunk - 1) / record.chunk, record.chunk, folded.seconds, rate,
      record.spec, record.chat_format, human_bytes(folded.kv_bytes), escape_controls(output),
      human_bytes(folded.file_bytes));
  return report;
}

namespace {

// What a new memory is made of, and how.
struct Origin {
  std::string kind = kDocumentMemory;
  TextSet text;
  MemorySpec spec;
  std::int64_t chunk = kDefaultChunk;
  std::string format;  // empty: the model's default
  fs::path model;
};

Result<Origin> origin_of_texts(const FoldFlags& flags, Console& console) {
  Origin origin;
  VOLVELLE_ASSIGN_OR_RETURN(origin.spec, effective_spec(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(origin.text, read_texts(flags.files, console));
  VOLVELLE_ASSIGN_OR_RETURN(origin.model, find_input(flags.model.model, "models"));
  return origin;
}

// Only the text of the old memory is used; what no flag says stays as it was there.
Result<Origin> origin_of_memory(const FoldFlags& flags) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemoryFile file, MemoryFile::open(flags.from));
  const MemoryRecord& record = file.record();
  VOLVELLE_RETURN_IF_ERROR(require_text(record, flags.from));
  Origin origin;
  origin.kind = record.kind;
  origin.text = {{flags.from}, record.text, record.sources};
  VOLVELLE_ASSIGN_OR_RETURN(origin.spec, effective_spec(flags.memory, record.spec));
  origin.chunk = record.chunk;
  origin.format = record.chat_format;
  VOLVELLE_ASSIGN_OR_RETURN(origin.model, find_model(flags.model.model, record, flags.from));
  return origin;
}

Result<Report> run(const FoldFlags& flags, Console& console) {
  VOLVELLE_RETURN_IF_ERROR(check_flags(flags));
  if (flags.append) return append_to_memory(flags, console);
  VOLVELLE_ASSIGN_OR_RETURN(Origin origin, flags.from.empty() ? origin_of_texts(flags, console)
                                                              : origin_of_memory(flags));
  std::vector<fs::path> inputs = origin.text.paths;
  inputs.push_back(origin.model);
  VOLVELLE_RETURN_IF_ERROR(check_output(flags.output, inputs));

  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(origin.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  if (!flags.format_name().empty()) origin.format = flags.format_name();
  if (origin.format.empty()) origin.format = default_chat_format(model);
  VOLVELLE_ASSIGN_OR_RETURN(const ChatFormat format, make_chat_format(model, origin.format));
  MemoryRecord record = make_record(model, format, origin.spec, flags.chunk.value_or(origin.chunk));
  record.kind = origin.kind;
  record.text = std::move(origin.text.text);
  record.sources = std::move(origin.text.sources);
  VOLVELLE_RETURN_IF_ERROR(tokenize_text(record, model, format, limit, console));

  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, origin.spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(origin.spec));
  VOLVELLE_RETURN_IF_ERROR(apply_calibration(flags.memory.calibration, model, memory, console));
  if (std::ssize(record.tokens) > memory.position_limit()) {
    return Error{
        ErrorCode::kContextExceeded,
        fmt::format("the text has {} tokens, but {} knows positions below {}: make a "
                    "calibration from a longer text",
                    record.tokens.size(), flags.memory.calibration, memory.position_limit())};
  }
  VOLVELLE_ASSIGN_OR_RETURN(
      const Folded folded, fold_to_file(session, std::move(memory), record, flags.output, console));
  return report_fold(record, folded, flags.output);
}

}  // namespace

void add_fold(CLI::App& parent, Selected& selected) {
  add_command<FoldFlags>(parent, selected, "fold", "Read a text once and save the memory", declare,
                         run);
}

}  // namespace volvelle::cli
