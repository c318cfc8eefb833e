// Moments after RoPE from moments before it, averaged over positions (or distances), in closed
// form.
//
// With z_b = x_b + i x_partner(b) of band b, X = E[z z^H], Y = E[z z^T] and chi(w) = E[exp(i w p)]:
//   X'_bc = X_bc chi(theta_b - theta_c),  Y'_bc = Y_bc chi(theta_b + theta_c),  mu'_b = mu_b
//   chi(theta_b)
// Fast bands decouple and become isotropic, slow ones keep their structure. Coordinates beyond the
// bands are not rotated: theta = 0. O(dim^2), exact. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace volvelle {

/// Positions start, start + 1, ..., start + n - 1, equally often.
struct PositionRange {
  std::int64_t start = 0;
  std::int64_t n = 1;
};

/// How the two coordinates of a band lie in a vector.
enum class PairLayout { kHalves, kNeighbours };  // (b, b + m) or (2 b, 2 b + 1)

/// E_p[R_p S R_p^T] for S [dim, dim], dim = 2 * theta.size() (theta of unrotated pairs is 0).
std::vector<double> rotation_average(std::span<const double> moment, std::span<const double> theta,
                                     PairLayout layout, PositionRange positions);
/// E_p[R_p mu].
std::vector<double> rotation_average_mean(std::span<const double> mean,
                                          std::span<const double> theta, PairLayout layout,
                                          PositionRange positions);

}  // namespace volvelle
