// `volvelle fold`: reads a text once and saves the memory.
//
//   memory_0 = empty;  memory_{t+1} = step(memory_t, chunk_t);  file = memory_N
//
// A memory that keeps everything is written straight into the mapped file while it is folded, so
// its rows never exist twice; a windowed one is saved at the end. The old file is replaced only
// when the new one is complete. Cost: one pass of the model over the text.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/result_macros.hpp"
#include "command.hpp"
#include "options.hpp"
#include "output_path.hpp"
#include "text_input.hpp"
#include "volvelle/io/atomic_file.hpp"
#include "volvelle/memory/memory_file.hpp"
#include "volvelle/runtime/chat_format.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

// Tokens that should stay free for a question and its answer.
constexpr std::int64_t kRoomForAnswer = 64;

struct FoldFlags {
  ModelFlags model;
  MemoryFlags memory;
  std::vector<std::string> files;
  std::string output;
  std::int64_t chunk = 256;
  std::string format;
  std::string chat_template;
};

void declare(CLI::App& app, FoldFlags& flags) {
  add_model_flags(app, flags.model, ModelFlag::kRequired);
  add_memory_flags(app, flags.memory);
  app.add_option("-f,--file", flags.files, "Text, or the name of one in the cache folder's texts/")
      ->required();
  app.add_option("-o,--output", flags.output, "Memory file to write")->required();
  app.add_option("--chunk", flags.chunk, "Tokens per step of the fold")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--format", flags.format,
                 "chat: as the opening of a conversation (default if the model has a known chat "
                 "template); raw: the text alone")
      ->check(CLI::IsMember({"chat", "raw"}));
  app.add_option("--chat-template", flags.chat_template, "Built-in template to use, e.g. chatml");
  add_unbuilt_option(app, "--append");
  add_unbuilt_option(app, "--from");
}

Status check_flags(const FoldFlags& flags) {
  if (flags.files.size() != 1) {
    return usage_error(fmt::format("this version folds one text a file, got {}: join them into one",
                                   flags.files.size()));
  }
  if (!flags.chat_template.empty() && flags.format == "raw") {
    return usage_error("--chat-template contradicts --format raw: use one of the two");
  }
  return {};
}

Result<ChatFormat> choose_format(const FoldFlags& flags, const Model& model) {
  if (!flags.chat_template.empty()) return make_chat_format(model, flags.chat_template);
  return make_chat_format(model, flags.format.empty() ? default_chat_format(model) : flags.format);
}

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

struct Folded {
  std::uint64_t kv_bytes = 0;
  std::uint64_t file_bytes = 0;
  double seconds = 0;  // of the fold itself
};

// Rows that are never dropped go straight into the file; those of windowed layers are copied at the
// end. The whole file is reserved first, so a full disk is found before the work.
Result<Folded> fold_to_file(Session& session, const MemorySpec& spec, const MemoryRecord& record,
                            const fs::path& output, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(spec));
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

Report make_report(const MemoryRecord& record, const Folded& folded, const std::string& output) {
  const auto n_tokens = static_cast<std::int64_t>(record.tokens.size());
  const std::int64_t depth = (n_tokens + record.chunk - 1) / record.chunk;
  const double rate = n_tokens / folded.seconds;
  Report report;
  report.json = {{"n_tokens", n_tokens},
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
                 {"file", output}};
  report.text = fmt::format(
      "folded {} tokens in {} chunks of {}, {:.1f} s, {:.0f} tokens/s\n"
      "memory '{}', format {}, {} of rows\n"
      "wrote {}, {}\n",
      n_tokens, depth, record.chunk, folded.seconds, rate, record.spec, record.chat_format,
      human_bytes(folded.kv_bytes), escape_controls(output), human_bytes(folded.file_bytes));
  return report;
}

Result<Report> run(const FoldFlags& flags, Console& console) {
  VOLVELLE_RETURN_IF_ERROR(check_flags(flags));
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(TextInput input, read_text(flags.files.front(), console));
  VOLVELLE_ASSIGN_OR_RETURN(const fs::path model_path, find_input(flags.model.model, "models"));
  VOLVELLE_RETURN_IF_ERROR(check_output(flags.output, {input.path, model_path}));

  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(model_path, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  VOLVELLE_ASSIGN_OR_RETURN(const ChatFormat format, choose_format(flags, model));
  VOLVELLE_ASSIGN_OR_RETURN(DocumentTokens document,
                            tokenize_document(model.tokenizer(), format, input.text));
  const auto n_tokens = static_cast<std::int64_t>(document.tokens.size());
  VOLVELLE_RETURN_IF_ERROR(require_room(n_tokens, limit, model, input.path.string()));
  if (n_tokens + kRoomForAnswer > limit) {
    console.warn(fmt::format("only {} tokens are left for question and answer ({} of {} used)",
                             limit - n_tokens, n_tokens, limit));
  }

  MemoryRecord record = make_record(model, format, spec, flags.chunk);
  record.tokens = std::move(document.tokens);
  record.ranges = std::move(document.ranges);
  record.text_begin_token = document.text_begin_token;
  record.text = std::move(input.text);

  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(const Folded folded,
                            fold_to_file(session, spec, record, flags.output, console));
  return make_report(record, folded, flags.output);
}

}  // namespace

void add_fold(CLI::App& parent, Selected& selected) {
  add_command<FoldFlags>(parent, selected, "fold", "Read a text once and save the memory", declare,
                         run);
}

}  // namespace volvelle::cli
