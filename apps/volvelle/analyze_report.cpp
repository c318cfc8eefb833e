// The configuration and the bounds from weights; heads are in analyze_heads.cpp.
#include "analyze_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "eval/statistics.hpp"

namespace volvelle::cli {

Json alias_json(const KernelAlias& alias) {
  if (alias.distance < 0) return {};
  const bool alone = alias.runner_up < 0;
  return {{"distance", alias.distance},
          {"value", alias.value},
          {"runner_up", alone ? Json() : Json(alias.runner_up)},
          {"gap", alone ? Json() : Json(alias.gap)}};
}

namespace {

Json joint_returns_json(const RotaryFacts& facts) {
  Json returns = Json::array();
  for (const JointReturn& back : facts.joint_returns) {
    returns.push_back({{"bands", back.n_slowest},
                       {"tolerance", back.tolerance},
                       {"distance", back.distance > 0 ? Json(back.distance) : Json()}});
  }
  return returns;
}

Json facts_json(const RotaryFacts& facts) {
  return {{"wavelengths", facts.wavelengths},
          {"kernel_below",
           {{"0.75", facts.crossings[0]},
            {"0.5", facts.crossings[1]},
            {"0.25", facts.crossings[2]},
            {"0", facts.crossings[3]}}},
          {"kernel_alias", alias_json(facts.kernel_alias)},
          {"band_alias", facts.band_alias < 0 ? Json() : Json(facts.band_alias)},
          {"joint_return", joint_returns_json(facts)},
          {"address_capacity",
           {{"64", facts.address_capacity[0]},
            {"512", facts.address_capacity[1]},
            {"4096", facts.address_capacity[2]}}}};
}

std::string or_never(std::int64_t distance) {
  return distance < 0 ? "never" : std::to_string(distance);
}

/// "431482, 3062241, 98213836, none" of the returns within one tolerance.
std::string returns_text(const RotaryFacts& facts, double tolerance) {
  std::vector<std::string> distances;
  for (const JointReturn& back : facts.joint_returns) {
    if (back.tolerance == tolerance)
      distances.push_back(back.distance > 0 ? std::to_string(back.distance) : "none");
  }
  return fmt::format("{}", fmt::join(distances, ", "));
}

std::string facts_text(const RotaryFacts& facts) {
  std::string text = fmt::format(
      "wavelengths: {:.4g} to {:.6g} positions in {} bands\n"
      "a key's address is alike itself by less than .75, .5, .25, 0 from distance {}, {}, {}, {} "
      "on\n"
      "it comes back most strongly at {}; the slowest band alone at {}\n",
      facts.wavelengths.front(), facts.wavelengths.back(), facts.wavelengths.size(),
      or_never(facts.crossings[0]), or_never(facts.crossings[1]), or_never(facts.crossings[2]),
      or_never(facts.crossings[3]),
      facts.kernel_alias.distance < 0
          ? "no distance that was looked at"
          : fmt::format("{} ({:.3f})", facts.kernel_alias.distance, facts.kernel_alias.value),
      or_never(facts.band_alias));
  if (!facts.joint_returns.empty()) {
    text += fmt::format(
        "the slowest 1, 2, 3, 4 bands are back together to .1 rad at {}; to .5 rad at {} (none: "
        "not "
        "within {:.0e})\n",
        returns_text(facts, 0.1), returns_text(facts, 0.5), static_cast<double>(kJointReturnLimit));
  }
  return text + fmt::format(
                    "others of random address that a key is told from at distance 64, 512, 4096: "
                    "{:.3g}, {:.3g}, {:.3g}\n",
                    facts.address_capacity[0], facts.address_capacity[1],
                    facts.address_capacity[2]);
}

}  // namespace

std::vector<AnalyzedGroup> analyzed_groups(const ModelRotations& rotations, std::int64_t length) {
  std::vector<AnalyzedGroup> groups;
  for (const RotationGroup& group : rotations.groups)
    groups.push_back({&group, rotary_facts(group.bands, length)});
  return groups;
}

Json rotations_json(const std::vector<AnalyzedGroup>& groups) {
  Json list = Json::array();
  for (const auto& [group, facts] : groups) {
    list.push_back({{"layers", group->layers},
                    {"window", group->window},
                    {"rotation", describe(group->node)},
                    {"configuration", facts_json(facts)}});
  }
  return list;
}

std::string rotations_text(const std::vector<AnalyzedGroup>& groups) {
  std::string text;
  for (const auto& [group, facts] : groups) {
    text += fmt::format("{} layers{}: {}\n{}", group->layers.size(),
                        group->window > 0 ? fmt::format(" with a window of {}", group->window) : "",
                        describe(group->node), facts_text(facts));
  }
  text += "positions held as";
  for (const char* const type : kPositionTypes)
    text += fmt::format(" {} {}{}", type, first_indistinct_position(type),
                        type == kPositionTypes.back() ? "" : ",");
  return text + ": the first that can not be told from the one before\n";
}

Json indistinct_positions_json() {
  Json positions;
  for (const char* const type : kPositionTypes) positions[type] = first_indistinct_position(type);
  return positions;
}

Json query_bounds_json(const std::vector<QueryBound>& bounds) {
  Json list = Json::array();
  for (const QueryBound& bound : bounds) {
    list.push_back({{"layer", bound.layer},
                    {"head", bound.head},
                    {"band", bound.band},
                    {"longest_band", bound.longest_band},
                    {"rotated", bound.rotated}});
  }
  return list;
}

std::string query_bounds_text(const std::vector<QueryBound>& bounds) {
  if (bounds.empty()) return {};
  const QueryBound& longest = *std::max_element(
      bounds.begin(), bounds.end(),
      [](const QueryBound& a, const QueryBound& b) { return a.longest_band < b.longest_band; });
  std::vector<double> bands, rotated;
  for (const QueryBound& bound : bounds) {
    bands.push_back(bound.longest_band);
    rotated.push_back(bound.rotated);
  }
  return fmt::format(
      "by the weights of {} heads no band of a query is longer than {:.4g} (median of heads; at "
      "most {:.4g}: layer {} head {} band {}), no query longer than {:.4g} (at most {:.4g})\n",
      bounds.size(), median(bands), longest.longest_band, longest.layer, longest.head, longest.band,
      median(rotated), quantile(rotated, 1.0));
}

}  // namespace volvelle::cli
