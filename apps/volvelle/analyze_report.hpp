// What `volvelle analyze` says, for programs and for people.
#pragma once

#include <string>
#include <vector>

#include "eval/rotary_facts.hpp"
#include "eval/rotary_study.hpp"
#include "output.hpp"

namespace volvelle::cli {

/// A group of layers and what follows from its frequencies.
struct AnalyzedGroup {
  const RotationGroup* group = nullptr;
  RotaryFacts facts;
};
std::vector<AnalyzedGroup> analyzed_groups(const ModelRotations& rotations, std::int64_t length);

Json rotations_json(const std::vector<AnalyzedGroup>& groups);
std::string rotations_text(const std::vector<AnalyzedGroup>& groups);
/// {"bf16": 257, ...}
Json indistinct_positions_json();
/// Null for an address that does not come back.
Json alias_json(const KernelAlias& alias);

Json query_bounds_json(const std::vector<QueryBound>& bounds);
std::string query_bounds_text(const std::vector<QueryBound>& bounds);

Json heads_json(const std::vector<RotaryHead>& heads);
double median_detrended_r(const std::vector<RotaryHead>& heads);
std::string heads_text(const std::vector<RotaryHead>& heads);

}  // namespace volvelle::cli
