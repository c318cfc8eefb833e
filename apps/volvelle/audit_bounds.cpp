// The verdict is a single number, violations, which must be 0, beside controls in which bounds were
// broken on purpose and which must not be 0: an audit that finds nothing there has not looked.
#include "audit_bounds.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/result_macros.hpp"
#include "eval/edit_study.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

Json summary_json(const RatioSummary& found) {
  return {{"n", found.n},
          {"violations", found.violations},
          {"largest", found.largest},
          {"mean", found.mean()}};
}

template <std::size_t N>
Json summaries_json(const std::array<RatioSummary, N>& found) {
  Json list = Json::array();
  for (std::size_t i = 0; i < N; ++i) {
    if (found[i].n == 0) continue;
    Json entry = summary_json(found[i]);
    entry["index"] = i;
    list.push_back(std::move(entry));
  }
  return list;
}

Json row_json(const EditStudyRow& row) {
  Json json = {{"edit", row.edit}, {"path", row.path}};
  json.update(summary_json(row.found.ratios.all));
  json["median"] = row.found.ratios.quantile(0.5);
  json["p99"] = row.found.ratios.quantile(0.99);
  return json;
}

Json weight_json(const WeightStudyRow& row) {
  Json json = {
      {"edit", row.edit}, {"mean_variation", row.mean_variation}, {"mean_bound", row.mean_bound}};
  json.update(summary_json(row.found));
  json["output_largest"] = row.outputs.largest;
  json["layer_largest"] = row.layers.n > 0 ? Json(row.layers.largest) : Json();
  return json;
}

RatioSummary total_of(const EditStudy& study) {
  RatioSummary total;
  for (const EditStudyRow& row : study.rows) total.merge(row.found.ratios.all);
  return total;
}

Json report_json(const EditStudy& study) {
  const RatioSummary total = total_of(study);
  Json rows = Json::array(), weights = Json::array(), controls = Json::array();
  EditAuditFindings all;
  for (const EditStudyRow& row : study.rows) {
    rows.push_back(row_json(row));
    all.merge(row.found);
  }
  for (const WeightStudyRow& row : study.weights) weights.push_back(weight_json(row));
  for (const EditControl& control : study.controls) {
    Json entry = {{"name", control.name}};
    entry.update(summary_json(control.found));
    controls.push_back(std::move(entry));
  }
  return {{"perturbations", total.n},
          {"violations", total.violations},
          {"seconds", study.seconds},
          {"rows", std::move(rows)},
          {"by_distance_log2", summaries_json(all.by_distance)},
          {"by_band", summaries_json(all.by_band)},
          {"from_weights", summary_json(study.from_weights)},
          {"query_bands", summary_json(study.query_lengths)},
          {"shifted_bands", summary_json(study.shifted_bands)},
          {"weights", std::move(weights)},
          {"controls", std::move(controls)},
          {"notes", study.notes}};
}

std::string report_text(const EditStudy& study, const Json& json) {
  const RatioSummary total = total_of(study);
  std::string text =
      fmt::format("{} edited scores, {} above their bound, {:.1f} s ({:.1f} million a second)\n\n",
                  total.n, total.violations, study.seconds,
                  study.seconds > 0.0 ? 1e-6 * static_cast<double>(total.n) / study.seconds : 0.0);
  if (total.n == 0) text += "nothing was audited: no layer could be studied\n";
  text += "Change of a score over its bound, by edit of keys\n\n" +
          render_rows(json["rows"], TableFormat::kMarkdown) +
          "\nVariation of a read's weights over its bound; largest changes of outputs and of "
          "layers over "
          "theirs\n\n" +
          render_rows(json["weights"], TableFormat::kMarkdown) +
          "\nBounds broken on purpose; each must be found\n\n" +
          render_rows(json["controls"], TableFormat::kMarkdown);
  if (study.from_weights.n > 0) {
    text += fmt::format(
        "\nBounds from weights alone: {} changes, {} violations, {:.2f} % of the bound on average, "
        "{:.1f} % at most\nBands of queries: {} of {} longer than the weights allow; {:.1f} % at "
        "most\n",
        study.from_weights.n, study.from_weights.violations, 100.0 * study.from_weights.mean(),
        100.0 * study.from_weights.largest, study.query_lengths.violations, study.query_lengths.n,
        100.0 * study.query_lengths.largest);
  }
  for (const std::string& note : study.notes) text += "note: " + note + "\n";
  return text;
}

bool violated(const EditStudy& study) {
  const bool of_reads =
      std::any_of(study.weights.begin(), study.weights.end(), [](const WeightStudyRow& row) {
        return row.found.violations + row.outputs.violations + row.layers.violations > 0;
      });
  const bool of_weights = study.from_weights.violations + study.query_lengths.violations > 0;
  return of_reads || total_of(study).violations > 0 || study.shifted_bands.violations > 0 ||
         (study.weights_bind && of_weights);
}

/// Nothing audited, or a control that finds nothing, says that the audit has not looked.
bool blind(const EditStudy& study) {
  return total_of(study).n == 0 ||
         std::any_of(study.controls.begin(), study.controls.end(),
                     [](const EditControl& control) { return control.found.violations == 0; });
}

}  // namespace

void declare_bounds(CLI::App& app, BoundsFlags& flags) {
  app.add_flag("--bounds", flags.bounds,
               "Instead: edits of the text's keys against the bounds of what they can change");
  app.add_option("--queries", flags.queries, "With --bounds: late positions of each head that ask")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 12))
      ->needs(app.get_option("--bounds"))
      ->capture_default_str();
}

Result<Report> audit_bounds(const ModelFlags& model_flags, const MemorySpec& spec,
                            const BoundsFlags& flags, const std::string& file,
                            std::int64_t n_tokens, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(model_flags, console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto tokens, first_tokens(model, file, n_tokens, console));
  EditStudyOptions options;
  options.queries = flags.queries;
  VOLVELLE_ASSIGN_OR_RETURN(options.session,
                            session_options(model_flags, MemorySpec::full_memory(), console));
  VOLVELLE_ASSIGN_OR_RETURN(const EditStudy study,
                            run_edit_study(model, tokens, spec, options, console.progress_sink()));
  Report report;
  const Json found = report_json(study);
  report.json = {{"model", model.info().path.string()},
                 {"model_fingerprint", model.info().fingerprint},
                 {"engine", engine_version()},
                 {"tokens", n_tokens},
                 {"spec", to_string(spec)}};
  report.json.update(found);
  report.text = report_text(study, found);
  report.exit_code = violated(study) ? kVerificationFailed : blind(study) ? kFailed : 0;
  return report;
}

}  // namespace volvelle::cli
