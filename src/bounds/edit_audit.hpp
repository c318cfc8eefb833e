// Checks bounds of edits against what scores really do, many millions at a time: every query with
// every edited key, changes as a kernel's floats give them (RoAM, sections on sound floating point
// and on the audit). Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "bounds/edit_bound.hpp"

namespace volvelle {

/// A change over its bound: 0 for no change, 2 for one where none is allowed.
inline double change_ratio(double change, double bound) noexcept {
  if (change == 0.0) return 0.0;  // not for NaN, which is a violation
  return bound > 0.0 ? change / bound : 2.0;
}

/// Changes over their bounds. A ratio above 1 is a violation.
struct RatioSummary {
  std::int64_t n = 0;
  std::int64_t violations = 0;
  double largest = 0.0;
  double sum = 0.0;
  void add(double ratio) noexcept;
  void merge(const RatioSummary& other) noexcept;
  double mean() const noexcept { return n > 0 ? sum / static_cast<double>(n) : 0.0; }
};
/// The same with the ratios in a thousand bins.
struct RatioHistogram {
  static constexpr int kBins = 1000;
  RatioSummary all;
  std::array<std::int64_t, kBins + 1> bins{};  // the last: above 1
  void add(double ratio) noexcept;
  void merge(const RatioHistogram& other) noexcept;
  /// The upper edge of the bin in which the share is reached.
  double quantile(double share) const noexcept;
};

/// Rounding of vectors that are turned with cosines and sines of these types, relative.
inline constexpr double kFloatTurn = 0x1p-21;  // 8 u
inline constexpr double kBfloatTurn = 0x1p-6;  // 4 * 2^-8

struct EditAuditTask {
  BandLayout layout;
  std::span<const float> queries;  // [n_queries, head_dim], as they are multiplied
  /// Whose lengths bound them: the same queries at another position.
  std::span<const float> lengths_of;
  std::span<const float> stored;  // [n_keys, head_dim], as they are multiplied
  std::span<const float> edited;
  std::span<const std::int64_t> query_positions;  // [n_queries]
  std::span<const std::int64_t> key_positions;    // [n_keys]
  std::span<const int> edited_bands{};            // [n_keys]: of edits of single bands, or nothing
  double query_slack = 0.0;  // how much longer than `lengths_of` queries may be, relative
  double key_slack = 0.0;    // of keys that were edited before they were turned: error of the turn
  /// Edits before keys were turned, [n_keys, head_dim] each; nothing: stored and edited themselves.
  std::span<const float> unturned{};
  std::span<const float> unturned_edited{};
  /// Edits whose lengths are known beforehand (edit_of_shift), [n_keys]; nothing: measured.
  std::span<const BandEdit> known_edits{};
  bool rounding = true;      // false leaves all slack out: a control
  double edit_factor = 1.0;  // below 1: a control that must be violated
};

/// By log2 of the distance, and by the band of an edit of a single one.
struct EditAuditFindings {
  static constexpr int kDistances = 18;
  static constexpr int kMaxBands = 256;
  RatioHistogram ratios;
  std::array<RatioSummary, kDistances> by_distance{};
  std::array<RatioSummary, kMaxBands> by_band{};
  void merge(const EditAuditFindings& other) noexcept;
};

/// |fl(s') - fl(s)| <= sum_b |q_b| a_b (1 + slack) + g (sum |q| (|K| + |K'|)) for all pairs;
/// changes of zero with a bound of zero count as ratio 0. Cost: n_queries n_keys (6 head_dim +
/// n_bands) multiply-adds.
void audit_edits(const EditAuditTask& task, EditAuditFindings& findings);

}  // namespace volvelle
