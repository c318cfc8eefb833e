// `volvelle plan`: what a memory of so many tokens will need, before anything long is started.
//
// The model is loaded and run for one ubatch; nothing is written. A plan that does not fit into the
// RAM is no error: the report says so and names the largest context that does.
#include <fmt/format.h>

#include "base/result_macros.hpp"
#include "command.hpp"
#include "options.hpp"
#include "text_input.hpp"
#include "volvelle/eval/plan.hpp"

namespace volvelle::cli {

namespace {

struct PlanFlags {
  ModelFlags model;
  MemoryFlags memory;
  std::uint64_t ram = 0;
};

void declare(CLI::App& app, PlanFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  app.add_option("-c,--ctx-size", flags.model.context,
                 "Tokens to plan for (0: the model's context)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  app.add_option("--threads-batch", flags.model.threads_batch,
                 "-tb: threads for reading (0: as -t)")
      ->check(CLI::Range(0, 1024));
  add_memory_flags(app, flags.memory);
  app.add_option("--ram", flags.ram, "Bytes that may be used (0: what is available now)")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 60));
  app.footer("Times are estimated from a short run on this machine; run nothing else meanwhile.");
}

std::string text_of(const Plan& plan, std::int64_t n_tokens, const ModelInfo& info,
                    const std::string& spec) {
  const auto line = [](const char* name, std::uint64_t bytes) {
    return fmt::format("  {:<18} {:>12}\n", name, human_bytes(bytes));
  };
  std::string text = fmt::format("{}, {} tokens, memory '{}'\n", info.name, n_tokens, spec);
  text += line("weights", plan.weight_bytes) + line("rows", plan.row_bytes) +
          line("index", plan.index_bytes) + line("attention scratch", plan.scratch_bytes) +
          line("program, engine", plan.program_bytes) + line("total", plan.total_bytes);
  text += fmt::format(
      "estimated: {:.1f} ms per token at that depth ({:.1f} ms attention), {:.1f} s "
      "to read all\n",
      plan.decode_ms, plan.attention_ms, plan.fold_seconds);
  if (plan.crossover > 0) {
    text += fmt::format(
        "estimated: reads through the index are faster from about {} tokens on (topk(min=N) says "
        "from where on it is used)\n",
        plan.crossover);
  } else if (plan.index_bytes > 0) {
    text += "estimated: reads through the index are not faster at this length on this machine\n";
  }
  const bool fits = plan.total_bytes <= plan.ram_bytes;
  text += fmt::format("{} into {}; largest context: {} of the model's {} tokens\n",
                      fits ? "fits" : "DOES NOT FIT", human_bytes(plan.ram_bytes),
                      plan.largest_context, info.context_length);
  return text;
}

Result<Report> run(const PlanFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t n_tokens, context_limit(flags.model, model));
  PlanOptions options;
  options.n_tokens = n_tokens;
  options.spec = spec;
  options.n_threads = flags.model.threads;
  options.n_threads_batch = flags.model.threads_batch;
  options.n_ubatch = flags.model.ubatch;
  options.ram_bytes = flags.ram;
  options.cancel = console.cancel();
  VOLVELLE_ASSIGN_OR_RETURN(const Plan plan, make_plan(model, options));
  Report report;
  report.json = {{"model", model.info().path.string()},
                 {"spec", to_string(spec)},
                 {"n_tokens", n_tokens},
                 {"bytes",
                  {{"weights", plan.weight_bytes},
                   {"rows", plan.row_bytes},
                   {"index", plan.index_bytes},
                   {"scratch", plan.scratch_bytes},
                   {"program", plan.program_bytes},
                   {"total", plan.total_bytes}}},
                 {"ram_bytes", plan.ram_bytes},
                 {"fits", plan.total_bytes <= plan.ram_bytes},
                 {"largest_context", plan.largest_context},
                 {"model_context", model.info().context_length},
                 {"estimated",
                  {{"decode_ms", plan.decode_ms},
                   {"attention_ms", plan.attention_ms},
                   {"fold_seconds", plan.fold_seconds},
                   {"index_crossover", plan.crossover > 0 ? Json(plan.crossover) : Json()}}}};
  report.text = text_of(plan, n_tokens, model.info(), to_string(spec));
  return report;
}

}  // namespace

void add_plan(CLI::App& parent, Selected& selected) {
  add_command<PlanFlags>(parent, selected, "plan", "What a memory will need: bytes and time",
                         declare, run);
}

}  // namespace volvelle::cli
