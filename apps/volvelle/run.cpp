// `volvelle run`: continues a raw text, streaming.
//
// The prompt is plain text (with the beginning-of-text token if the model wants one); chat
// templates belong to `fold` and `ask`. Cost: one pass over the prompt, then one step a token.
#include <fmt/format.h>

#include "base/result_macros.hpp"
#include "certificate.hpp"
#include "command.hpp"
#include "generation.hpp"
#include "options.hpp"
#include "stored_memory.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

struct RunFlags {
  ModelFlags model;
  MemoryFlags memory;
  SamplerFlags sampling;
  std::string prompt;
  std::vector<std::string> files;
};

void declare(CLI::App& app, RunFlags& flags) {
  add_model_flags(app, flags.model, ModelFlag::kRequired);
  add_memory_flags(app, flags.memory);
  add_calibration_flag(app, flags.memory);
  add_sampler_flags(app, flags.sampling);
  app.footer("timings.first_token_ms counts from the program's start (its static initialisation).");
  auto* source = app.add_option_group("prompt", "At least one of the two");
  source->add_option("-p,--prompt", flags.prompt, "Text to continue; with -f behind those texts");
  source
      ->add_option("-f,--file", flags.files,
                   "Text to continue, or the name of one in the cache folder's texts/; several are "
                   "joined with a blank line")
      ->allow_extra_args(false);
  source->require_option(1, 2);
}

// All texts, then the prompt.
Result<TextSet> read_prompt(const RunFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(TextSet all, read_texts(flags.files, console));
  if (flags.prompt.empty() && !flags.files.empty()) return all;
  const Status usable = check_text(flags.prompt, "the prompt");
  if (!usable.ok()) return usage_error(usable.error().message);
  std::string prompt = flags.prompt;
  drop_byte_order_mark(prompt, "the prompt", console);
  append_text(all.text, all.sources, {{}, std::move(prompt), {}});
  return all;
}

Result<Report> run(const RunFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const TextSet prompt, read_prompt(flags, console));
  SamplerFlags sampling = flags.sampling;
  VOLVELLE_RETURN_IF_ERROR(prepare_sampling(sampling, console));
  const auto load_start = std::chrono::steady_clock::now();
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  const double load_ms = milliseconds_since(load_start);
  warn_of_unused(sampling, model, console);
  VOLVELLE_ASSIGN_OR_RETURN(Sampler sampler, make_sampler(model, sampling.options));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  VOLVELLE_ASSIGN_OR_RETURN(const auto text,
                            model.tokenizer().tokenize(prompt.text, {.add_special = true}));
  const auto n_prompt = static_cast<std::int64_t>(text.tokens.size());
  VOLVELLE_RETURN_IF_ERROR(require_room(n_prompt, limit, model, "the prompt"));

  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(spec));
  VOLVELLE_RETURN_IF_ERROR(apply_calibration(flags.memory.calibration, model, memory, console));
  VOLVELLE_ASSIGN_OR_RETURN(
      const Generated result,
      generate_text(session, memory, {text.tokens, sampling, limit}, sampler, console));

  console.stream("\n");
  const Generation& generation = result.generation;
  VOLVELLE_RETURN_IF_ERROR(require_whole(generation));
  const ReadStatistics reads = session.take_read_statistics();
  if (!console.json()) {
    if (spec.topk) console.note(certificate_text(spec, reads));
    console.note(fmt::format("memory '{}': {} tokens read, {} generated in {:.1f} s",
                             to_string(spec), n_prompt, generation.n_predicted,
                             result.predicted_ms / 1e3));
  }
  return Report{{{"text", generation.text},
                 {"spec", to_string(spec)},
                 {"engine", engine_version()},
                 {"n_prompt", n_prompt},
                 {"n_predicted", generation.n_predicted},
                 {"stop_reason", generation.stop_reason},
                 {"stop", text_or_null(generation.stop_string)},
                 {"seed", json_or_null(used_seed(sampling.options))},
                 {"certificate", certificate_json(spec, reads)},
                 {"timings",
                  {{"load_ms", load_ms},
                   {"prompt_ms", result.prompt_ms},
                   {"first_token_ms", json_or_null(result.first_token_ms)},
                   {"predicted_ms", result.predicted_ms}}}},
                ""};
}

}  // namespace

void add_run(CLI::App& parent, Selected& selected) {
  add_command<RunFlags>(parent, selected, "run", "Continue a text", declare, run);
}

}  // namespace volvelle::cli
