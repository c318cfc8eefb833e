// `volvelle bench drift`: the folded run against one full pass of plain llama.cpp, chunk by chunk.
//
// For a complete memory the fold is the same function, so every delta is rounding and must not grow
// with depth; the isolated chunk shows what the memory is worth.
#include <fmt/format.h>

#include "base/result_macros.hpp"
#include "bench.hpp"
#include "options.hpp"
#include "text_input.hpp"
#include "volvelle/eval/drift.hpp"

namespace volvelle::cli {

namespace {

struct DriftFlags {
  ModelFlags model;
  MemoryFlags memory;
  BenchOutput output;
  std::string file;
  std::int64_t tokens = 4096;
  std::int64_t chunk = 256;
};

void declare(CLI::App& app, DriftFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  add_cache_type_flags(app, flags.memory);
  app.add_option("-f,--file", flags.file, "Text, or the name of one in the cache folder's texts/")
      ->required();
  app.add_option("--tokens", flags.tokens, "The first so many tokens of the text")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--chunk", flags.chunk, "Tokens per step of the fold")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  add_bench_output(app, flags.output);
}

Json row_json(const DriftRow& row) {
  return {{"depth", row.depth},
          {"n_targets", row.n_targets},
          {"nll_delta_mean", row.nll_delta_mean},
          {"nll_delta_abs", row.nll_delta_abs},
          {"logit_delta_max", row.logit_delta_max},
          {"kl_mean", row.kl_mean},
          {"nll_isolated", row.nll_isolated},
          {"advantage", row.advantage},
          {"argmax_agreement", row.argmax_agreement},
          {"kv_rel_l2", row.kv_rel_l2},
          {"seconds", row.seconds}};
}

Result<Report> run(const DriftFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto tokens,
                            first_tokens(model, flags.file, flags.tokens, console));
  DriftOptions options;
  options.chunk = flags.chunk;
  options.n_threads = flags.model.threads;
  options.n_ubatch = flags.model.ubatch;
  VOLVELLE_ASSIGN_OR_RETURN(options.kv, kv_types(spec));
  options.cancel = console.cancel();
  VOLVELLE_ASSIGN_OR_RETURN(const auto found,
                            run_drift(model, tokens, options, console.progress_sink()));
  Json rows = Json::array();
  for (const DriftRow& row : found) rows.push_back(row_json(row));
  return make_bench_report({{"model", model.info().path.string()},
                            {"model_fingerprint", model.info().fingerprint},
                            {"engine", engine_version()},
                            {"spec", to_string(spec)},
                            {"tokens", flags.tokens},
                            {"chunk", flags.chunk}},
                           std::move(rows), flags.output);
}

}  // namespace

void add_bench_drift(CLI::App& bench, Selected& selected) {
  add_command<DriftFlags>(bench, selected, "drift", "Fold against one full pass of llama.cpp",
                          declare, run);
}

}  // namespace volvelle::cli
