// `volvelle ask`: answers a question from a saved memory, without reading the text again.
//
//   tokens = render(document, question);  p = longest common prefix of tokens and the stored ones
//   memory = restore(file) cut to p tokens;  step only tokens[p:]
//
// So what the model sees is the rendering of the whole conversation, whatever was stored. Cost: the
// question's tokens and the answer's, plus one read of the file to check it.
#include <fmt/format.h>

#include <algorithm>

#include "base/result_macros.hpp"
#include "command.hpp"
#include "generation.hpp"
#include "options.hpp"
#include "text_input.hpp"
#include "volvelle/memory/memory_file.hpp"
#include "volvelle/runtime/chat_format.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

struct AskFlags {
  ModelFlags model;
  SamplerFlags sampling;
  std::string file;
  std::string question;
};

void declare(CLI::App& app, AskFlags& flags) {
  app.add_option("FILE", flags.file, "Memory file that fold wrote")->required();
  app.add_option("QUESTION", flags.question, "What to ask")->required();
  add_model_flags(app, flags.model, ModelFlag::kOptional);
  add_sampler_flags(app, flags.sampling);
  app.footer("timings.first_token_ms counts from the program's start (its static initialisation).");
  add_unbuilt_option(app, "--evidence");
}

bool has_fingerprint(const fs::path& path, const std::string& fingerprint) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  const auto found = model_fingerprint(path);
  return found.ok() && *found == fingerprint;
}

// -m, else the recorded path, else any model of the cache folder with the right fingerprint.
Result<fs::path> find_model(const AskFlags& flags, const MemoryRecord& record) {
  if (!flags.model.model.empty()) return find_input(flags.model.model, "models");
  if (has_fingerprint(record.model_path, record.model_fingerprint)) {
    return fs::path(record.model_path);
  }
  const fs::path folder = cache_folder() / "models";
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const bool is_model = entry.path().extension() == ".gguf";
    if (is_model && has_fingerprint(entry.path(), record.model_fingerprint)) return entry.path();
  }
  return Error{
      ErrorCode::kNotFound,
      fmt::format("finding the model of {}: no -m was given, the recorded path {} does not "
                  "hold it, and no model in {} has the fingerprint {}: give -m",
                  flags.file, record.model_path, folder.string(), record.model_fingerprint)};
}

// A memory is rows that one model computed; under any other model they are noise.
Status require_match(const MemoryFile& file, const Model& model, const ChatFormat& format,
                     const std::string& name) {
  const auto require = [&](const std::string& what, const std::string& stored,
                           const std::string& found) -> Status {
    if (stored == found) return {};
    return Error{ErrorCode::kMismatch,
                 fmt::format("using {} with {}: the {} differs (stored {}, model has {}): use the "
                             "model that folded it, '{}'",
                             name, model.info().path.string(), what, stored, found,
                             file.record().model_name)};
  };
  const MemoryRecord& record = file.record();
  const ModelInfo& info = model.info();
  VOLVELLE_RETURN_IF_ERROR(require("fingerprint", record.model_fingerprint, info.fingerprint));
  VOLVELLE_RETURN_IF_ERROR(require("tokenizer", record.tokenizer_hash, info.tokenizer_hash));
  VOLVELLE_RETURN_IF_ERROR(require("RoPE configuration", record.rope, info.rope.describe()));
  VOLVELLE_RETURN_IF_ERROR(require("chat template", record.template_hash, format.template_hash));
  if (file.layout().layers != info.layers) {
    return Error{ErrorCode::kMismatch,
                 fmt::format("using {} with {}: the layers' head counts or sizes differ: use the "
                             "model that folded it",
                             name, info.path.string())};
  }
  return {};
}

Result<MemorySpec> stored_spec(const MemoryRecord& record) {
  VOLVELLE_ASSIGN_OR_RETURN(MemorySpec spec, parse_memory_spec(record.spec));
  VOLVELLE_RETURN_IF_ERROR(require_supported(spec));
  return spec;
}

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return end - a.begin();
}

Result<ContextMemory> restore_memory(MemoryFile& file, Console& console) {
  VOLVELLE_RETURN_IF_ERROR(file.verify_rows(console.progress_sink()));
  return file.restore();
}

struct Counts {
  std::int64_t n_prompt, n_cached;
  double load_ms, restore_ms;
};

Report make_report(const Generated& result, const std::string& spec, const Counts& counts,
                   const std::optional<std::uint32_t>& seed) {
  const auto& [n_prompt, n_cached, load_ms, restore_ms] = counts;
  const Generation& generation = result.generation;
  return Report{{{"answer", generation.text},
                 {"n_prompt", n_prompt},
                 {"n_cached", n_cached},
                 {"n_predicted", generation.n_predicted},
                 {"spec", spec},
                 {"engine", engine_version()},
                 {"stop_reason", generation.stop_reason},
                 {"stop", text_or_null(generation.stop_string)},
                 {"seed", json_or_null(seed)},
                 {"timings",
                  {{"load_ms", load_ms},
                   {"restore_ms", restore_ms},
                   {"prompt_ms", result.prompt_ms},
                   {"first_token_ms", json_or_null(result.first_token_ms)},
                   {"predicted_ms", result.predicted_ms}}}},
                ""};
}

Result<Report> run(const AskFlags& flags, Console& console) {
  const Status usable = check_text(flags.question, "the question");
  if (!usable.ok()) return usage_error(usable.error().message);
  std::string question = flags.question;
  drop_byte_order_mark(question, "the question", console);
  SamplerFlags sampling = flags.sampling;
  VOLVELLE_RETURN_IF_ERROR(prepare_sampling(sampling, console));
  const auto open_start = std::chrono::steady_clock::now();
  VOLVELLE_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::open(flags.file));
  const MemoryRecord& record = file.record();
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, stored_spec(record));
  const double open_ms = milliseconds_since(open_start);

  const auto load_start = std::chrono::steady_clock::now();
  VOLVELLE_ASSIGN_OR_RETURN(const fs::path model_path, find_model(flags, record));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(model_path, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  // The fingerprint first: with another model even the stored chat format may be unknown.
  if (record.model_fingerprint != model.info().fingerprint) {
    VOLVELLE_RETURN_IF_ERROR(require_match(file, model, {}, flags.file));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const ChatFormat format, make_chat_format(model, record.chat_format));
  VOLVELLE_RETURN_IF_ERROR(require_match(file, model, format, flags.file));
  warn_of_unused(sampling, model, console);
  VOLVELLE_ASSIGN_OR_RETURN(Sampler sampler, make_sampler(model, sampling.options));
  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  const double load_ms = milliseconds_since(load_start);

  const auto restore_start = std::chrono::steady_clock::now();
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, restore_memory(file, console));
  const double restore_ms = open_ms + milliseconds_since(restore_start);

  VOLVELLE_ASSIGN_OR_RETURN(
      const DocumentTokens conversation,
      tokenize_conversation(model.tokenizer(), format, record.text, question));
  const auto n_tokens = static_cast<std::int64_t>(conversation.tokens.size());
  VOLVELLE_RETURN_IF_ERROR(require_room(n_tokens, limit, model, "the text with the question"));
  // The last token is always stepped: its logits choose the first token of the answer.
  const std::int64_t n_cached =
      std::min(common_prefix(record.tokens, conversation.tokens), n_tokens - 1);
  VOLVELLE_RETURN_IF_ERROR(memory.truncate(n_cached));
  const auto rest = std::span(conversation.tokens).subspan(static_cast<std::size_t>(n_cached));
  const GenerateRequest request{rest, sampling, limit};
  VOLVELLE_ASSIGN_OR_RETURN(const Generated result,
                            generate_text(session, memory, request, sampler, console));
  console.stream("\n");
  VOLVELLE_RETURN_IF_ERROR(require_whole(result.generation));
  const std::int64_t n_prompt = n_tokens - n_cached;
  if (!console.json()) {
    std::string note = fmt::format("memory '{}': {} tokens from the file, {} read", record.spec,
                                   n_cached, n_prompt);
    if (result.first_token_ms) {
      note += fmt::format(", first token after {:.2f} s", *result.first_token_ms / 1e3);
    }
    console.note(note);
  }
  return make_report(result, record.spec, {n_prompt, n_cached, load_ms, restore_ms},
                     used_seed(sampling.options));
}

}  // namespace

void add_ask(CLI::App& parent, Selected& selected) {
  add_command<AskFlags>(parent, selected, "ask", "Answer a question from a saved memory", declare,
                        run);
}

}  // namespace volvelle::cli
