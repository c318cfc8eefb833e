// `volvelle analyze`: at which distances a model's heads can retrieve, from its rotary positions
// alone and, with a text, head by head.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analyze_page.hpp"
#include "base/result_macros.hpp"
#include "command.hpp"
#include "eval/rotary_study.hpp"
#include "eval/statistics.hpp"
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
  app.add_option("--length", flags.length, "Search aliases of positions up to this distance")
      ->check(CLI::Range(std::int64_t{16}, std::int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("-o,--output", flags.page, "Also write one HTML page with maps and curves");
}

Json facts_json(const RotaryFacts& facts) {
  return {{"wavelengths", facts.wavelengths},
          {"kernel_below",
           {{"0.75", facts.crossings[0]},
            {"0.5", facts.crossings[1]},
            {"0.25", facts.crossings[2]},
            {"0", facts.crossings[3]}}},
          {"kernel_alias",
           {{"distance", facts.kernel_alias.distance},
            {"value", facts.kernel_alias.value},
            {"runner_up", facts.kernel_alias.runner_up},
            {"gap", facts.kernel_alias.gap}}},
          {"band_alias", facts.band_alias},
          {"address_capacity",
           {{"64", facts.address_capacity[0]},
            {"512", facts.address_capacity[1]},
            {"4096", facts.address_capacity[2]}}}};
}

std::string or_never(std::int64_t distance) {
  return distance < 0 ? "never" : std::to_string(distance);
}

std::string facts_text(const RotaryFacts& facts) {
  return fmt::format(
      "wavelengths: {:.4g} to {:.6g} positions in {} bands\n"
      "a key's address is alike itself by less than .75, .5, .25, 0 from distance {}, {}, {}, {} "
      "on\n"
      "it comes back most strongly at {}; the slowest band alone at {}\n"
      "others of random address that a key is told from at distance 64, 512, 4096: {:.3g}, {:.3g}, "
      "{:.3g}\n",
      facts.wavelengths.front(), facts.wavelengths.back(), facts.wavelengths.size(),
      or_never(facts.crossings[0]), or_never(facts.crossings[1]), or_never(facts.crossings[2]),
      or_never(facts.crossings[3]),
      facts.kernel_alias.distance < 0
          ? "no distance that was looked at"
          : fmt::format("{} ({:.3f})", facts.kernel_alias.distance, facts.kernel_alias.value),
      or_never(facts.band_alias), facts.address_capacity[0], facts.address_capacity[1],
      facts.address_capacity[2]);
}

/// Four digits are enough for figures, and keep reports short.
Json rounded(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values)
    list.push_back(std::isfinite(value) ? Json(std::stod(fmt::format("{:.4g}", value))) : Json());
  return list;
}

Json recall_json(const RotaryHead& head) {
  Json recalls;
  for (std::size_t i = 0; i < head.recall.size(); ++i)
    recalls[std::to_string(kRecallRanks[i])] = head.recall[i];
  return recalls;
}

Json head_json(const RotaryHead& head) {
  return {{"layer", head.layer},
          {"head", head.head},
          {"raw_r", head.raw_r},
          {"detrended_r", head.detrended_r},
          {"linear_r", head.linear_r},
          {"ceiling_r", head.ceiling_r},
          {"slow_share", head.slow_share},
          {"range", head.range},
          {"induction_z", head.induction_z},
          {"capacity", head.capacity},
          {"sink_mass", head.sink_mass},
          {"key_rank", head.key_rank},
          {"query_share", head.query_share > 0.0 ? Json(head.query_share) : Json()},
          {"recall", recall_json(head)},
          {"band_shares", rounded(head.band_shares)},
          {"predicted", rounded(head.predicted)},
          {"measured", rounded(head.measured)}};
}

std::vector<double> column(const std::vector<RotaryHead>& heads, double RotaryHead::*field) {
  std::vector<double> values;
  for (const RotaryHead& head : heads) values.push_back(head.*field);
  return values;
}

std::string heads_text(const std::vector<RotaryHead>& heads) {
  if (heads.empty()) return "no head could be studied; see the notes\n";
  std::vector<double> shares = column(heads, &RotaryHead::query_share);
  std::erase(shares, 0.0);  // not known
  const std::string weights_text =
      shares.empty() ? "what the weights allow is not known"
                     : fmt::format("{:.1f} % of what the weights allow (median; {:.1f} % at most)",
                                   100.0 * median(shares), 100.0 * quantile(shares, 1.0));
  std::string text = fmt::format(
      "predicted against measured logit curves, median over {} heads: detrended r {:.3f} (raw "
      "{:.3f}, "
      "linear {:.3f}; noise allows {:.3f})\n"
      "attention on the first four tokens: median {:.2f}; effective rank of keys: median {:.1f}\n"
      "longest query bands: {}\n"
      "heads in which the key behind an earlier occurrence stands out most:\n",
      heads.size(), median(column(heads, &RotaryHead::detrended_r)),
      median(column(heads, &RotaryHead::raw_r)), median(column(heads, &RotaryHead::linear_r)),
      median(column(heads, &RotaryHead::ceiling_r)), median(column(heads, &RotaryHead::sink_mass)),
      median(column(heads, &RotaryHead::key_rank)), weights_text);
  std::vector<RotaryHead> best = heads;
  std::sort(best.begin(), best.end(),
            [](const RotaryHead& a, const RotaryHead& b) { return a.induction_z > b.induction_z; });
  for (std::size_t i = 0; i < std::min<std::size_t>(8, best.size()); ++i) {
    text += fmt::format("  layer {:>2} head {:>2}: {:.2f} standard deviations, capacity {:.3g}\n",
                        best[i].layer, best[i].head, best[i].induction_z, best[i].capacity);
  }
  return text;
}

Json rotations_json(const ModelRotations& rotations, std::int64_t length) {
  Json groups = Json::array();
  for (const RotationGroup& group : rotations.groups) {
    groups.push_back({{"layers", group.layers},
                      {"window", group.window},
                      {"rotation", describe(group.node)},
                      {"configuration", facts_json(rotary_facts(group.bands, length))}});
  }
  return groups;
}

std::string rotations_text(const ModelRotations& rotations, std::int64_t length) {
  std::string text;
  for (const RotationGroup& group : rotations.groups) {
    text += fmt::format("{} layers{}: {}\n{}", group.layers.size(),
                        group.window > 0 ? fmt::format(" with a window of {}", group.window) : "",
                        describe(group.node), facts_text(rotary_facts(group.bands, length)));
  }
  for (const std::string& note : rotations.notes) text += "note: " + note + "\n";
  return text;
}

/// What the heads do on the text, added to the report.
Status add_heads(const AnalyzeFlags& flags, const Model& model, ModelRotations& rotations,
                 Report& report, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto tokens,
                            first_tokens(model, flags.file, flags.tokens, console));
  RotaryStudyOptions options;
  options.max_distance = flags.distance;
  VOLVELLE_ASSIGN_OR_RETURN(options.session,
                            session_options(flags.model, MemorySpec::full_memory(), console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto heads, run_rotary_study(model, rotations, tokens, options,
                                                               console.progress_sink()));
  for (const RotaryHead& head : heads) report.json["heads"].push_back(head_json(head));
  report.json["distances"] = curve_distances(flags.distance);
  report.json["median_detrended_r"] = median(column(heads, &RotaryHead::detrended_r));
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
  Report report;
  report.json = {{"model", model.info().name},
                 {"path", model.info().path.string()},
                 {"model_fingerprint", model.info().fingerprint},
                 {"engine", engine_version()},
                 {"text", text_or_null(flags.file)},
                 {"tokens", flags.file.empty() ? Json() : Json(flags.tokens)},
                 {"length", flags.length},
                 {"notes", rotations.notes},
                 {"rotations", rotations_json(rotations, flags.length)},
                 {"distances", Json::array()},
                 {"heads", Json::array()}};
  report.text = rotations_text(rotations, flags.length);
  if (!flags.file.empty())
    VOLVELLE_RETURN_IF_ERROR(add_heads(flags, model, rotations, report, console));
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
