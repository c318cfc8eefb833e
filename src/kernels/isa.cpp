// Names and choice of the instruction set; the dispatch itself is Highway's.
//
// Invariant: after force_isa() every dispatched kernel re-reads the choice on its next call,
// because Highway resets the chosen target together with the mask of supported ones.
#include "volvelle/kernels/isa.hpp"

#include <cstdint>
#include <cstdlib>
#include <optional>

// clang-format off
#include <hwy/highway.h>
// clang-format on

#include "base/result_macros.hpp"

namespace volvelle {
namespace {

struct NamedTarget {
  const char* name;
  std::int64_t target;
};
constexpr NamedTarget kTargets[] = {{"avx3", HWY_AVX3},
                                    {"avx2", HWY_AVX2},
                                    {"sse4", HWY_SSE4},
                                    {"ssse3", HWY_SSSE3},
                                    {"scalar", HWY_SCALAR}};

std::optional<std::int64_t> target_of(const std::string& name) {
  for (const NamedTarget& known : kTargets) {
    if (name == known.name) return known.target;
  }
  return std::nullopt;
}

/// All targets of this processor for which kernels were compiled, whatever is forced now.
std::int64_t available_targets() {
  const std::int64_t current = hwy::SupportedTargets();
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t all = hwy::SupportedTargets() & HWY_TARGETS;
  hwy::SetSupportedTargetsForTest(current);
  return all;
}

std::string known_names() {
  std::string names;
  for (const NamedTarget& known : kTargets)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace

Status force_isa(const std::string& name) {
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    return {};
  }
  const std::optional<std::int64_t> target = target_of(name);
  if (!target) {
    return Error{ErrorCode::kInvalidArgument,
                 "instruction set: unknown name '" + name + "', expected one of " + known_names()};
  }
  if ((available_targets() & *target) == 0) {
    std::string names;
    for (const std::string& known : supported_isas()) names += " " + known;
    return Error{ErrorCode::kUnsupported, "instruction set: this processor has no '" + name +
                                              "', it runs:" + names + "; unset VOLVELLE_ISA"};
  }
  hwy::SetSupportedTargetsForTest(*target);
  return {};
}

Status select_isa() {
  const char* forced = std::getenv("VOLVELLE_ISA");
  if (forced != nullptr && *forced != '\0') return force_isa(forced);
  VOLVELLE_RETURN_IF_ERROR(force_isa(""));
  if ((available_targets() & (HWY_AVX2 | HWY_AVX3)) == 0) {
    return Error{ErrorCode::kUnsupported,
                 "instruction set: expected a processor with AVX2 and F16C, found only " +
                     isa_name() + "; set VOLVELLE_ISA=" + isa_name() + " to run slowly"};
  }
  return {};
}

std::string isa_name() {
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  for (const NamedTarget& known : kTargets) {
    if ((targets & known.target) != 0) return known.name;
  }
  return "scalar";
}

std::vector<std::string> supported_isas() {
  const std::int64_t targets = available_targets();
  std::vector<std::string> names;
  for (const NamedTarget& known : kTargets) {
    if ((targets & known.target) != 0) names.emplace_back(known.name);
  }
  return names;
}

}  // namespace volvelle
