// `volvelle analyze`: at which distances a model's heads can retrieve, from its rotary positions
// alone and, with a text, head by head.
#include <fmt/format.h>

#include <algorithm>

#include "analyze_page.hpp"
#include "analyze_report.hpp"
#include "base/result_macros.hpp"
#include "command.hpp"
#include "options.hpp"
#include "output_path.hpp"
#include "text_input.hpp"
#include "volvelle/io/atomic_file.hpp"

namespace volvelle::cli {

namespace {

struct AnalyzeFlags {
  ModelFlags model;
  std::string file;
  std::int64_t tokens = 4096;
  std::int64_t distance = 1024;
  std::int64_t length = 131072;
  std::string page;
};

void declare(CLI::App& app, AnalyzeFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  app.add_option("-f,--file", flags.file,
                 "Text, or the name of one in the cache folder's texts/; without it only what the "
                 "configuration says");
  app.add_option("--tokens", flags.tokens, "The first so many tokens of the text")
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{1} << 30))
      ->needs(app.get_option("--file"))
      ->capture_default_str();
  app.add_option("--distance", flags.distance, "Longest distance of the logit curves")
      ->check(CLI::Range(std::int64_t{8}, std::int64_t{1} << 20))
      ->needs(app.get_option("--file"))
      ->capture_default_str();
  app.add_option(
         "--length", flags.length,
         "Search aliases and ranges up to this distance (those of heads up to 16384 and 131072 at "
         "most)")
      ->check(CLI::Range(std::int64_t{16}, std::int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("-o,--output", flags.page, "Also write one HTML page with maps and curves");
}

/// What the weights allow, added to the report.
Result<ModelQueryFactors> add_bounds(const Model& model, const ModelRotations& rotations,
                                     Report& report, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(
      ModelQueryFactors factors,
      model_query_factors(model, rotations, console.cancel(), console.progress_sink()));
  const std::vector<QueryBound> bounds = query_bounds(factors);
  for (const std::string& note : factors.notes) report.json["notes"].push_back(note);
  report.json["query_bounds"] = query_bounds_json(bounds);
  report.text += query_bounds_text(bounds);
  return factors;
}

/// What the heads do on the text, added to the report.
Status add_heads(const AnalyzeFlags& flags, const Model& model, const ModelRotations& rotations,
                 const ModelQueryFactors& factors, Report& report, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto tokens,
                            first_tokens(model, flags.file, flags.tokens, console));
  RotaryStudyOptions options;
  options.max_distance = flags.distance;
  options.range_limit = std::min(flags.length, kHeadRangeLimit);
  VOLVELLE_ASSIGN_OR_RETURN(options.session,
                            session_options(flags.model, MemorySpec::full_memory(), console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto heads, run_rotary_study(model, rotations, factors, tokens,
                                                               options, console.progress_sink()));
  report.json["heads"] = heads_json(heads);
  report.json["distances"] = curve_distances(flags.distance);
  report.json["retrieval_distances"] = retrieval_distances(flags.distance);
  report.json["pairs"] = heads.empty() ? Json() : Json(heads.front().n_pairs);
  report.json["median_detrended_r"] = heads.empty() ? Json() : Json(median_detrended_r(heads));
  report.text += heads_text(heads);
  return {};
}

std::string left_out_note(const Model& model) {
  const auto& layers = model.info().layers;
  std::int64_t n = 0;
  for (std::size_t i = 0; i < layers.size(); ++i)
    n += layers[i].n_kv_heads > 0 && (layers[i].window > 0 || model.info().layer_readers[i] != 1);
  if (n == 0) return {};
  return fmt::format(
      "the heads of {} layers with a window of their own, or whose rows other layers read, are "
      "left "
      "out",
      n);
}

Result<Report> run(const AnalyzeFlags& flags, Console& console) {
  if (!flags.page.empty())
    VOLVELLE_RETURN_IF_ERROR(check_output(flags.page, {flags.model.model, flags.file}));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  VOLVELLE_ASSIGN_OR_RETURN(ModelRotations rotations, model_rotations(model));
  if (const std::string note = left_out_note(model); !flags.file.empty() && !note.empty())
    rotations.notes.push_back(note);
  const std::vector<AnalyzedGroup> groups = analyzed_groups(rotations, flags.length);
  Report report;
  report.json = {{"model", model.info().name},
                 {"path", model.info().path.string()},
                 {"model_fingerprint", model.info().fingerprint},
                 {"engine", engine_version()},
                 {"text", text_or_null(flags.file)},
                 {"tokens", flags.file.empty() ? Json() : Json(flags.tokens)},
                 {"length", flags.length},
                 {"notes", rotations.notes},
                 {"rotations", rotations_json(groups)},
                 {"first_indistinct_position", indistinct_positions_json()},
                 {"query_bounds", Json::array()},
                 {"distances", Json::array()},
                 {"retrieval_distances", Json::array()},
                 {"found_among", {{"others", kFoundAmong}, {"failure", kNotFound}}},
                 {"pairs", Json()},
                 {"heads", Json::array()}};
  report.text = rotations_text(groups);
  VOLVELLE_ASSIGN_OR_RETURN(const ModelQueryFactors factors,
                            add_bounds(model, rotations, report, console));
  if (!flags.file.empty())
    VOLVELLE_RETURN_IF_ERROR(add_heads(flags, model, rotations, factors, report, console));
  for (const Json& note : report.json["notes"])
    report.text += "note: " + note.get<std::string>() + "\n";
  if (flags.page.empty()) return report;
  const std::string page = analysis_page(report.json);
  VOLVELLE_RETURN_IF_ERROR(
      write_file_atomically(flags.page, std::as_bytes(std::span(page.data(), page.size()))));
  report.text += fmt::format("wrote {}\n", escape_controls(flags.page));
  return report;
}

}  // namespace

void add_analyze(CLI::App& parent, Selected& selected) {
  add_command<AnalyzeFlags>(parent, selected, "analyze",
                            "At which distances a model's heads can retrieve", declare, run);
}

}  // namespace volvelle::cli
