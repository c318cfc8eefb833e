// A triangular factor R, R^T R = G, follows G when a rank-one term is added or taken away, in
// O(r^2). R is upper triangular, row-major [dim, dim], so that each step runs along a row. Adding
// is backward stable for any number of steps; taking away is as accurate as the result is well
// conditioned. Thread rule: pure functions; nothing is allocated.
#pragma once

#include <span>

namespace volvelle {

/// R becomes the factor of G + x x^T. x: [dim], overwritten. Diagonal entries of R are positive.
void cholesky_add(std::span<double> factor, std::span<double> x) noexcept;

/// R becomes the factor of G - x x^T, x: [dim], overwritten. False when a squared pivot of the
/// result would be below `floor` (or is not a number); R is unusable then.
[[nodiscard]] bool cholesky_remove(std::span<double> factor, std::span<double> x,
                                   double floor) noexcept;

}  // namespace volvelle
