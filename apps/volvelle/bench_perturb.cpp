// `volvelle bench perturb`: what damage to a model's memory costs in retrieval, choice and
// perplexity.
#include "base/result_macros.hpp"
#include "bench.hpp"
#include "eval/perturb.hpp"
#include "options.hpp"
#include "text_input.hpp"
#include "volvelle/eval/needle.hpp"

namespace volvelle::cli {

namespace {

struct PerturbFlags {
  ModelFlags model;
  BenchOutput output;
  std::string file;
  PerturbOptions options;
};

void declare(CLI::App& app, PerturbFlags& flags) {
  PerturbOptions& options = flags.options;
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  CLI::Option* const book =
      app.add_option("-f,--file", flags.file,
                     "A book, or the name of one in the cache folder's texts/ (not for the wired "
                     "retriever)");
  app.add_option("--tokens", options.tokens, "Length of a document, a multiple of --chunk")
      ->check(CLI::Range(std::int64_t{256}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--chunk", options.chunk, "Tokens per step of the fold")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--texts", options.texts, "Documents of the perplexity")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->needs(book)
      ->capture_default_str();
  app.add_option("--choices", options.choices, "Questions of the 4-way choice")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->needs(book)
      ->capture_default_str();
  app.add_option("--trials", options.trials, "Haystacks for each of three distances (0: none)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--sizes", options.sizes, "Disturbance of a key, beside its norm")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 100.0))
      ->capture_default_str();
  app.add_option("-s,--seed", options.seed, "Seed of haystacks, choices and directions")
      ->capture_default_str();
  add_bench_output(app, flags.output);
}

Json row_json(const PerturbRow& row) {
  const auto or_null = [](double value, std::int64_t n) { return n > 0 ? Json(value) : Json(); };
  return {{"damage", row.damage},
          {"what", row.what},
          {"size", row.size},
          {"retrieval", or_null(row.retrieval, row.n_retrieval)},
          {"n_retrieval", row.n_retrieval},
          {"choice", or_null(row.choice, row.n_choice)},
          {"n_choice", row.n_choice},
          {"perplexity", or_null(row.perplexity, row.n_perplexity)},
          {"n_perplexity", row.n_perplexity}};
}

Result<Report> run(const PerturbFlags& flags, Console& console) {
  PerturbOptions options = flags.options;
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(options.session,
                            session_options(flags.model, MemorySpec::full_memory(), console));
  TextInput book;
  if (is_wired_retriever(model) != flags.file.empty())
    return usage_error(flags.file.empty() ? "-f names the book that this model reads"
                                          : "the wired retriever reads no book: leave -f out");
  if (!flags.file.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(book, read_text(flags.file, console));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const auto found,
                            run_perturb(model, book.text, options, console.progress_sink()));
  Json rows = Json::array();
  for (const PerturbRow& row : found) rows.push_back(row_json(row));
  return make_bench_report({{"model", model.info().path.string()},
                            {"model_fingerprint", model.info().fingerprint},
                            {"engine", engine_version()},
                            {"tokens", options.tokens},
                            {"seed", options.seed}},
                           std::move(rows), flags.output);
}

}  // namespace

void add_bench_perturb(CLI::App& bench, Selected& selected) {
  add_command<PerturbFlags>(bench, selected, "perturb",
                            "What damage to a memory costs: bands of keys, compression", declare,
                            run);
}

}  // namespace volvelle::cli
