// `volvelle bench perplexity`: perplexity of a text under several memories, and how far each is
// from the first: KL divergence, agreement of the most likely token, paired nll difference.
#include "base/result_macros.hpp"
#include "bench.hpp"
#include "options.hpp"
#include "text_input.hpp"
#include "volvelle/eval/perplexity.hpp"

namespace volvelle::cli {

namespace {

struct PerplexityFlags {
  ModelFlags model;
  MemoryFlags memory;
  BenchOutput output;
  std::string file;
  std::string against;
  std::int64_t tokens = 2048;
  std::int64_t chunk = 256;
};

void declare(CLI::App& app, PerplexityFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  app.add_flag("--deterministic", flags.model.deterministic,
               "Equal bits for any -ub and number of threads in our attention");
  add_memory_list_flags(app, flags.memory);
  app.add_option("-f,--file", flags.file, "Text, or the name of one in the cache folder's texts/")
      ->required();
  app.add_option("--tokens", flags.tokens, "The first so many tokens of the text")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--chunk", flags.chunk, "Tokens per step; one chunk's logits are held in RAM")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--against", flags.against, "Also run llama.cpp's own paths: llama")
      ->check(CLI::IsMember({"llama"}));
  add_bench_output(app, flags.output);
}

Json row_json(const PerplexityRow& row) {
  return {{"spec", row.spec},
          {"n_targets", row.n_targets},
          {"perplexity", row.perplexity},
          {"perplexity_error", row.perplexity_error},
          {"nll_mean", row.nll_mean},
          {"nll_delta_mean", row.nll_delta_mean},
          {"nll_delta_error", row.nll_delta_error},
          {"kl_mean", row.kl_mean},
          {"kl_p99", row.kl_p99},
          {"kl_max", row.kl_max},
          {"top1_agreement", row.top1_agreement},
          {"bytes_per_token", row.bytes_per_token}};
}

Result<Report> run(const PerplexityFlags& flags, Console& console) {
  PerplexityOptions options;
  VOLVELLE_ASSIGN_OR_RETURN(options.specs, effective_specs(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto tokens,
                            first_tokens(model, flags.file, flags.tokens, console));
  options.against_engine = !flags.against.empty();
  options.chunk = flags.chunk;
  options.n_threads = flags.model.threads;
  options.n_ubatch = flags.model.ubatch;
  options.deterministic = flags.model.deterministic;
  options.cancel = console.cancel();
  VOLVELLE_ASSIGN_OR_RETURN(const auto found,
                            run_perplexity(model, tokens, options, console.progress_sink()));
  Json rows = Json::array();
  for (const PerplexityRow& row : found) rows.push_back(row_json(row));
  return make_bench_report({{"model", model.info().path.string()},
                            {"model_fingerprint", model.info().fingerprint},
                            {"engine", engine_version()},
                            {"reference", found.front().spec},
                            {"tokens", flags.tokens},
                            {"chunk", flags.chunk}},
                           std::move(rows), flags.output);
}

}  // namespace

void add_bench_perplexity(CLI::App& bench, Selected& selected) {
  add_command<PerplexityFlags>(bench, selected, "perplexity",
                               "Perplexity and fidelity of a text under several memories", declare,
                               run);
}

}  // namespace volvelle::cli
