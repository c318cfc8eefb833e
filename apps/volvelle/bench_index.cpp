// `volvelle bench index`: how well score codes of few coordinates find the best keys of a model,
// made from one text and read in another.
#include "base/result_macros.hpp"
#include "bench.hpp"
#include "eval/index_study.hpp"
#include "options.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

struct IndexFlags {
  ModelFlags model;
  BenchOutput output;
  std::string made_of;
  std::string read;
  std::int64_t tokens = 4096;
  IndexStudyOptions options;
};

void declare(CLI::App& app, IndexFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  app.add_option("-f,--file", flags.made_of, "Text that codes are made from")->required();
  app.add_option("--read", flags.read, "Text that they are read in (another one!)")->required();
  app.add_option("--tokens", flags.tokens, "The first so many tokens of each")
      ->check(CLI::Range(std::int64_t{1024}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--ranks", flags.options.ranks, "Coordinates of a code, e.g. 16,32,64")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--calibrations", flags.options.calibrations,
                 "Rows that codes are made from, ascending; for the middle rank")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--queries", flags.options.queries, "Late positions that ask")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 12))
      ->capture_default_str();
  add_bench_output(app, flags.output);
}

Json row_json(const IndexStudyRow& row) {
  return {{"codec", row.codec},
          {"rank", row.rank},
          {"rows", row.calibration},
          {"shrink", row.shrink},
          {"recall", row.recall},
          {"recall_mean", row.recall_mean},
          {"win_share", row.win_share},
          {"predicted_error", row.predicted_error},
          {"measured_error", row.measured_error},
          {"correlation", row.correlation},
          {"predicted_recall", row.predicted_recall},
          {"spike_correlation", row.spike_correlation}};
}

Result<Report> run(const IndexFlags& flags, Console& console) {
  IndexStudyOptions options = flags.options;
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(options.session,
                            session_options(flags.model, MemorySpec::full_memory(), console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto made_of,
                            first_tokens(model, flags.made_of, flags.tokens, console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto read,
                            first_tokens(model, flags.read, flags.tokens, console));
  VOLVELLE_ASSIGN_OR_RETURN(
      const auto found, run_index_study(model, made_of, read, options, console.progress_sink()));
  Json rows = Json::array();
  for (const IndexStudyRow& row : found) rows.push_back(row_json(row));
  return make_bench_report({{"model", model.info().path.string()},
                            {"model_fingerprint", model.info().fingerprint},
                            {"engine", engine_version()},
                            {"tokens", flags.tokens},
                            {"k", options.k}},
                           std::move(rows), flags.output);
}

}  // namespace

void add_bench_index(CLI::App& bench, Selected& selected) {
  add_command<IndexFlags>(bench, selected, "index",
                          "Score codes on a model's keys and queries: recall by rank", declare,
                          run);
}

}  // namespace volvelle::cli
