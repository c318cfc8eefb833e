// Small geometry of rows: visible ranges, and segments cut into runs of one KV head.
//
// Invariant used everywhere: over the tokens of a task sink_end, begin and end never decrease.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/runs.hpp"
#include "volvelle/attention/attend.hpp"

namespace volvelle {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr double kLn2 = 0.69314718055994531;

struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const noexcept { return std::max<std::int64_t>(0, end - begin); }
  bool operator==(const RowRange&) const = default;
};

constexpr RowRange intersect(RowRange a, RowRange b) noexcept {
  return {std::max(a.begin, b.begin), std::max(std::max(a.begin, b.begin), std::min(a.end, b.end))};
}

/// The part of a block of rows that one token sees: two ranges, the sinks before the window.
struct VisiblePart {
  RowRange sinks;
  RowRange window;
  std::int64_t size() const noexcept { return sinks.size() + window.size(); }
};

inline VisiblePart visible_part(const VisibleRows& visible, RowRange block) noexcept {
  return {intersect({0, visible.sink_end}, block), intersect({visible.begin, visible.end}, block)};
}

/// Whether two parts are the same rows.
inline bool same_rows(const VisiblePart& a, const VisiblePart& b) noexcept {
  const auto same = [](RowRange x, RowRange y) {
    return x == y || (x.size() == 0 && y.size() == 0);
  };
  return same(a.sinks, b.sinks) && same(a.window, b.window);
}

/// Appends the rows [range) of KV head `head` to runs[n...]; returns the new n. Rows that no
/// segment holds are left out. `origin` is the row that offset 0 of a run means. Writes at most
/// range.size() runs.
std::int64_t append_runs(const AttendTask& task, int head, RowRange range, std::int64_t origin,
                         KeyValueRun* runs, std::int64_t n) noexcept;

/// Pre-scale of queries and the cap of scores so that kernels work in base 2.
struct ScoreScale {
  float query = 1.0f;
  float cap_log2 = 0.0f;
};
inline ScoreScale score_scale(const AttentionShape& shape) noexcept {
  if (shape.soft_cap > 0.0f) return {shape.scale / shape.soft_cap, shape.soft_cap * kLog2E};
  return {shape.scale * kLog2E, 0.0f};
}

}  // namespace volvelle
