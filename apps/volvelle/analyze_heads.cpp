// The heads' part of the report of `volvelle analyze`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analyze_report.hpp"
#include "eval/statistics.hpp"

namespace volvelle::cli {

namespace {

/// Four digits are enough for figures, and keep reports short; null for what is no number.
Json rounded(double value) {
  return std::isfinite(value) ? Json(std::stod(fmt::format("{:.4g}", value))) : Json();
}
Json rounded(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(rounded(value));
  return list;
}

Json recall_json(const RotaryHead& head) {
  Json recalls;
  for (std::size_t i = 0; i < head.recall.size(); ++i)
    recalls[std::to_string(kRecallRanks[i])] = head.recall[i];
  return recalls;
}

Json range_json(const std::optional<ThresholdRange>& found) {
  if (!found) return {};
  // Not rounded where it says that the search ended first.
  const double smoothed = found->range.smoothed;
  const bool beyond = smoothed >= static_cast<double>(found->searched);
  return {{"threshold", rounded(found->threshold)},
          {"law", rounded(found->range.law)},
          {"smoothed", beyond ? Json(found->searched) : rounded(smoothed)},
          {"hard", found->range.hard},
          {"guaranteed", rounded(found->range.guaranteed)},
          {"searched", found->searched}};
}

Json rounded_alias(const KernelAlias& alias) {
  Json json = alias_json(alias);
  for (const char* const figure : {"value", "gap"})
    if (json.is_object() && !json[figure].is_null())
      json[figure] = rounded(json[figure].get<double>());
  return json;
}

/// One list for each figure, as long as the report's "retrieval_distances".
Json retrieval_json(const RotaryHead& head) {
  if (head.at.empty()) return {};
  Json lists;
  for (const RetrievalAt& at : head.at) {
    lists["matched"].push_back(rounded(at.logits.matched));
    lists["background"].push_back(rounded(at.logits.background));
    lists["sigma"].push_back(rounded(at.logits.sigma));
    lists["target_sigma"].push_back(rounded(at.logits.target_sigma));
    lists["z"].push_back(rounded(at.z));
    lists["capacity"].push_back(rounded(at.capacity));
    lists["ln_softmax_capacity"].push_back(rounded(at.ln_softmax_capacity));
  }
  return lists;
}

Json head_json(const RotaryHead& head) {
  return {{"layer", head.layer},
          {"head", head.head},
          {"raw_r", head.raw_r},
          {"detrended_r", head.detrended_r},
          {"linear_r", head.linear_r},
          {"ceiling_r", head.ceiling_r},
          {"slow_share", head.slow_share},
          {"mean_range", range_json(head.range)},
          {"alias", rounded_alias(head.alias)},
          {"retrieval", retrieval_json(head)},
          {"target_range", range_json(head.target_range)},
          {"induction_z", head.induction_z},
          {"capacity", head.capacity},
          {"sink_mass", head.sink_mass},
          {"key_rank", head.key_rank},
          {"query_share", head.query_share > 0.0 ? Json(head.query_share) : Json()},
          {"recall", recall_json(head)},
          {"band_shares", rounded(head.band_shares)},
          {"predicted", rounded(head.predicted)},
          {"measured", rounded(head.measured)},
          {"matched", head.matched.empty() ? Json() : rounded(head.matched)}};
}

std::vector<double> column(const std::vector<RotaryHead>& heads, double RotaryHead::*field) {
  std::vector<double> values;
  for (const RotaryHead& head : heads) values.push_back(head.*field);
  return values;
}

std::string curves_text(const std::vector<RotaryHead>& heads) {
  std::vector<double> shares = column(heads, &RotaryHead::query_share);
  std::erase(shares, 0.0);  // not known
  const std::string weights_text =
      shares.empty() ? "what the weights allow is not known"
                     : fmt::format("{:.1f} % of what the weights allow (median; {:.1f} % at most)",
                                   100.0 * median(shares), 100.0 * quantile(shares, 1.0));
  return fmt::format(
      "predicted against measured logit curves, median over {} heads: detrended r {:.3f} (raw "
      "{:.3f}, "
      "linear {:.3f}; noise allows {:.3f})\n"
      "attention on the first four tokens: median {:.2f}; effective rank of keys: median {:.1f}\n"
      "longest query bands: {}\n",
      heads.size(), median_detrended_r(heads), median(column(heads, &RotaryHead::raw_r)),
      median(column(heads, &RotaryHead::linear_r)), median(column(heads, &RotaryHead::ceiling_r)),
      median(column(heads, &RotaryHead::sink_mass)), median(column(heads, &RotaryHead::key_rank)),
      weights_text);
}

/// "4141 (median of 250 heads; ...)"
std::string alias_text(const std::vector<RotaryHead>& heads) {
  std::int64_t searched = kHeadAliasLimit;
  for (const RotaryHead& head : heads)
    searched = std::min(searched, head.range ? head.range->searched : searched);
  std::vector<double> distances;
  for (const RotaryHead& head : heads)
    if (head.alias.distance >= 0) distances.push_back(static_cast<double>(head.alias.distance));
  if (distances.empty()) return {};
  return fmt::format(
      "with the bands' weights of each head its keys look most like themselves again at {:.0f} "
      "(median of {} heads; quartiles {:.0f} and {:.0f}; looked at up to {})\n",
      median(distances), distances.size(), quantile(distances, 0.25), quantile(distances, 0.75),
      searched);
}

std::string retrieval_text(const std::vector<RotaryHead>& heads) {
  const std::size_t n = heads.front().at.size();
  if (n == 0) return "no token of the text occurs again: nothing that heads should find\n";
  constexpr const char* kColumns = "{:>10}  {:>22}  {:>28}  {:>12}\n";
  std::string text = fmt::format(
      "the key behind an earlier occurrence of a token ({} pairs), turned to a distance, against "
      "others there:\n",
      heads.front().n_pairs);
  text +=
      fmt::format(kColumns, "distance", "z: median, best head", "best head tells it from", "heads");
  const double enough = capacity_quantile(kFoundAmong, kNotFound);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> z;
    for (const RotaryHead& head : heads) z.push_back(head.at[i].z);
    const double best = quantile(z, 1.0);
    text += fmt::format(
        kColumns, heads.front().at[i].logits.distance,
        fmt::format("{:.2f}, {:.2f}", median(z), best),
        fmt::format("{:.3g} others (half: {:.3g})", argmax_capacity(best, 0.05),
                    argmax_capacity(best, 0.5)),
        std::count_if(z.begin(), z.end(), [&](double of_head) { return of_head >= enough; }));
  }
  return text + fmt::format(
                    "(z: standard deviations; others told from in 95 of 100 cases, in half; heads: "
                    "that find it among {} others in half of the cases)\n",
                    kFoundAmong);
}

std::string best_text(const std::vector<RotaryHead>& heads) {
  std::string text = "heads in which the key behind an earlier occurrence stands out most:\n";
  std::vector<RotaryHead> best = heads;
  std::sort(best.begin(), best.end(),
            [](const RotaryHead& a, const RotaryHead& b) { return a.induction_z > b.induction_z; });
  for (std::size_t i = 0; i < std::min<std::size_t>(8, best.size()); ++i) {
    text += fmt::format("  layer {:>2} head {:>2}: {:.2f} standard deviations, capacity {:.3g}",
                        best[i].layer, best[i].head, best[i].induction_z, best[i].capacity);
    if (best[i].target_range) {
      const std::int64_t reach = best[i].target_range->range.hard;
      text += fmt::format("; {} found among {} others in half of the cases{}",
                          reach > 0 ? "if turned," : "if turned, never", kFoundAmong,
                          reach <= 0 ? ""
                          : reach >= best[i].target_range->searched
                              ? fmt::format(" up to distance {} at least", reach)
                              : fmt::format(" up to distance {}", reach));
    }
    text += "\n";
  }
  return text;
}

}  // namespace

Json heads_json(const std::vector<RotaryHead>& heads) {
  Json list = Json::array();
  for (const RotaryHead& head : heads) list.push_back(head_json(head));
  return list;
}

double median_detrended_r(const std::vector<RotaryHead>& heads) {
  return median(column(heads, &RotaryHead::detrended_r));
}

std::string heads_text(const std::vector<RotaryHead>& heads) {
  if (heads.empty()) return "no head could be studied; see the notes\n";
  return curves_text(heads) + alias_text(heads) + retrieval_text(heads) + best_text(heads);
}

}  // namespace volvelle::cli
