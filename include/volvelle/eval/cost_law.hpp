// What reading a text must cost, in closed form, and lines through what was measured.
//
//   a chunk of n tokens behind P:  pairs = sum_i (P + i + 1) = n P + n (n + 1) / 2   (no window)
//                                  multiply-adds of a layer = H (Dk + Dv) pairs
//   so a chunk's time is a + b P, and that of a text a T + b T^2 / 2: the fold and one causal pass
//   do the same arithmetic, since pairs add up.
//
// (KV-Fold, arXiv 2605.12471, section on cost, with the constants worked out.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volvelle/memory/window_rule.hpp"

namespace volvelle {

/// Pairs of a query and a row that it sees, for `n` tokens behind `before` ones.
std::int64_t attended_pairs(const WindowRule& rule, std::int64_t before, std::int64_t n) noexcept;

/// y = intercept + slope x by least squares; r2 is 1 for a perfect line, 0 if x explains nothing.
struct LineFit {
  std::int64_t n = 0;
  double intercept = 0;
  double slope = 0;
  double r2 = 0;
};
/// Both equally long. With less than two different x the slope is 0.
LineFit fit_line(std::span<const double> x, std::span<const double> y);

/// One step of a fold.
struct ChunkTime {
  std::int64_t before = 0;  // tokens in memory
  std::int64_t tokens = 0;
  double seconds = 0;
};
/// Seconds of a chunk against the tokens before it: the median over equal chunks, whole chunks only
/// (those of the most frequent size).
LineFit fit_chunk_times(std::span<const ChunkTime> chunks);

}  // namespace volvelle
