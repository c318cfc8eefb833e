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
#include "certificate.hpp"
#include "command.hpp"
#include "conversation.hpp"
#include "evidence.hpp"
#include "generation.hpp"
#include "options.hpp"
#include "stored_memory.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

struct AskFlags {
  ModelFlags model;
  SamplerFlags sampling;
  std::string file;
  std::string question;
  std::int64_t evidence = 0;  // passages to show
};

constexpr std::int64_t kPassages = 3;

void declare(CLI::App& app, AskFlags& flags) {
  app.add_option("FILE", flags.file, "Memory file that fold wrote")->required();
  app.add_option("QUESTION", flags.question, "What to ask")->required();
  add_model_flags(app, flags.model, ModelFlag::kOptional);
  add_sampler_flags(app, flags.sampling);
  app.footer("timings.first_token_ms counts from the program's start (its static initialisation).");
  app.add_option("--evidence", flags.evidence,
                 "Show the passages that question and answer attended to (how many; alone: 3)")
      ->expected(0, 1)
      ->default_str(std::to_string(kPassages))
      ->check(CLI::Range(1, 1000));
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

// The stored document or conversation, and the question.
Result<DocumentTokens> tokenize_asked(const MemoryRecord& record, const Model& model,
                                      const ChatFormat& format, const std::string& question) {
  if (record.kind != kConversationMemory)
    return tokenize_conversation(model.tokenizer(), format, record.text, question);
  VOLVELLE_ASSIGN_OR_RETURN(const Conversation conversation, read_conversation(record));
  return tokenize_question(model.tokenizer(), format, conversation, question);
}

void print_note(const std::string& spec, std::int64_t n_cached, std::int64_t n_prompt,
                const std::optional<double>& first_token_ms, Console& console) {
  if (console.json()) return;
  std::string note =
      fmt::format("memory '{}': {} tokens from the file, {} read", spec, n_cached, n_prompt);
  if (first_token_ms) note += fmt::format(", first token after {:.2f} s", *first_token_ms / 1e3);
  console.note(note);
}

Status add_evidence(const EvidenceWatch& watch, const MemoryRecord& record, std::int64_t count,
                    Report& report) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto passages, watch.passages(record.ranges, record.text, count));
  report.json["evidence"] = evidence_json(passages, record.text, record.sources);
  report.text = evidence_text(passages, record.text, record.sources, stdout_has_colour());
  return {};
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
  VOLVELLE_ASSIGN_OR_RETURN(const fs::path model_path,
                            find_model(flags.model.model, record, flags.file));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(model_path, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  VOLVELLE_ASSIGN_OR_RETURN(const ChatFormat format, require_match(file, model, flags.file));
  warn_of_unused(sampling, model, console);
  VOLVELLE_ASSIGN_OR_RETURN(Sampler sampler, make_sampler(model, sampling.options));
  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  const double load_ms = milliseconds_since(load_start);

  const auto restore_start = std::chrono::steady_clock::now();
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, restore_memory(file, console));
  const double restore_ms = open_ms + milliseconds_since(restore_start);

  VOLVELLE_ASSIGN_OR_RETURN(const DocumentTokens conversation,
                            tokenize_asked(record, model, format, question));
  const auto n_tokens = static_cast<std::int64_t>(conversation.tokens.size());
  VOLVELLE_RETURN_IF_ERROR(require_room(n_tokens, limit, model, "the text with the question"));
  // The last token is always stepped: its logits choose the first token of the answer.
  const std::int64_t n_cached =
      std::min(common_prefix(record.tokens, conversation.tokens), n_tokens - 1);
  VOLVELLE_RETURN_IF_ERROR(memory.truncate(n_cached));
  const auto rest = std::span(conversation.tokens).subspan(static_cast<std::size_t>(n_cached));
  const GenerateRequest request{rest, sampling, limit};
  std::optional<EvidenceWatch> watch;
  if (flags.evidence > 0) {
    VOLVELLE_ASSIGN_OR_RETURN(
        auto started, EvidenceWatch::start(session, memory, record.text_begin_token, n_cached));
    watch.emplace(std::move(started));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const Generated result,
                            generate_text(session, memory, request, sampler, console));
  console.stream("\n");
  VOLVELLE_RETURN_IF_ERROR(require_whole(result.generation));
  const std::int64_t n_prompt = n_tokens - n_cached;
  print_note(record.spec, n_cached, n_prompt, result.first_token_ms, console);
  Report report = make_report(result, record.spec, {n_prompt, n_cached, load_ms, restore_ms},
                              used_seed(sampling.options));
  const ReadStatistics reads = session.take_read_statistics();
  report.json["certificate"] = certificate_json(spec, reads);
  if (!console.json() && spec.topk) console.note(certificate_text(spec, reads));
  if (watch) VOLVELLE_RETURN_IF_ERROR(add_evidence(*watch, record, flags.evidence, report));
  return report;
}

}  // namespace

void add_ask(CLI::App& parent, Selected& selected) {
  add_command<AskFlags>(parent, selected, "ask", "Answer a question from a saved memory", declare,
                        run);
}

}  // namespace volvelle::cli
