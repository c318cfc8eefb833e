// Rules that hold between the terms of a memory spec, wherever the spec comes from (text or code).
//
// Private to the module: the parser reads terms, check_consistent() knows which values and
// combinations make sense.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "volvelle/memory/memory_spec.hpp"

namespace volvelle::memory_spec_detail {

/// Largest token or row count of a spec: far beyond any machine, small enough that sums of
/// positions can not overflow.
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
inline constexpr int kMaxBits = 16;
inline constexpr int kMaxRank = 1 << 16;

inline constexpr std::array<std::string_view, 5> kKvTypeNames = {"f32", "f16", "bf16", "q8_0",
                                                                 "q4_0"};
inline constexpr std::array<std::string_view, 4> kIndexNames = {"saki", "pca", "dims", "exact"};
inline constexpr std::array<std::string_view, 2> kTopkTailNames = {"coded", "none"};
inline constexpr std::array<std::string_view, 3> kCertNames = {"exact", "dither", "none"};
inline constexpr std::array<std::string_view, 2> kAnchorNames = {"token", "block"};
inline constexpr std::array<std::string_view, 5> kTailNames = {"summary", "outer", "koopman",
                                                               "mean", "none"};

/// An error of this module: "memory spec: " and the message, control characters replaced so that it
/// stays one line.
Error spec_error(std::string_view message);

/// "a, b, c"
template <class Names>
std::string join(const Names& names) {
  std::string out;
  for (const std::string_view name : names) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

/// Checks ranges, names and contradictions between terms.
Status check_consistent(const MemorySpec& spec);

}  // namespace volvelle::memory_spec_detail
