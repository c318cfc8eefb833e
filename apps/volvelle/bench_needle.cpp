// `volvelle bench needle`: recall by distance between a fact and the question.
//
// On the wired retriever recall is 100 % by construction, so a miss is a fault of the memory (or
// the fact was dropped by a window).
#include <fmt/format.h>

#include "base/result_macros.hpp"
#include "bench.hpp"
#include "options.hpp"
#include "volvelle/eval/needle.hpp"

namespace volvelle::cli {

namespace {

struct NeedleFlags {
  ModelFlags model;
  MemoryFlags memory;
  BenchOutput output;
  NeedleOptions options;
};

void declare(CLI::App& app, NeedleFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  app.add_flag("--deterministic", flags.model.deterministic,
               "Equal bits for any -ub and number of threads in our attention");
  add_memory_flags(app, flags.memory);
  NeedleOptions& o = flags.options;
  app.add_option("--tokens", o.tokens, "Length of the haystack, a multiple of --chunk")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--chunk", o.chunk, "Tokens per step of the fold")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--distances", o.distances, "Chunks between fact and question, e.g. 1,8,32")
      ->delimiter(',')
      ->required();
  app.add_option("--trials", o.trials, "Haystacks")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("-s,--seed", o.seed, "Seed of the haystacks")->capture_default_str();
  app.add_option("--absent", o.absent, "Also ask for so many absent keys (reported as distance 0)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{64}))
      ->capture_default_str();
  add_bench_output(app, flags.output);
  add_unbuilt_option(app, "--needles");
}

Json row_json(const NeedleRow& row) {
  return {{"distance", row.distance},
          {"trials", row.trials},
          {"correct", row.correct},
          {"none", row.none}};
}

Result<Report> run(const NeedleFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(
      const auto found, run_needle(model, session, spec, flags.options, console.progress_sink()));
  Json rows = Json::array();
  for (const NeedleRow& row : found) rows.push_back(row_json(row));
  return make_bench_report({{"model", model.info().path.string()},
                            {"model_fingerprint", model.info().fingerprint},
                            {"engine", engine_version()},
                            {"spec", to_string(spec)},
                            {"tokens", flags.options.tokens},
                            {"chunk", flags.options.chunk},
                            {"seed", flags.options.seed}},
                           std::move(rows), flags.output);
}

}  // namespace

void add_bench_needle(CLI::App& bench, Selected& selected) {
  add_command<NeedleFlags>(bench, selected, "needle", "Recall by distance on the wired retriever",
                           declare, run);
}

}  // namespace volvelle::cli
