// Linear codes of keys from which scores can be estimated: shat = (D^T q) . E (k - mu).
//
//   balanced    (SAKI, arXiv 2608.03228)  Sk = L L^T,  G = L^T Sq L = V diag(lam^2) V^T,
//               D = L V diag(lam)^(-1/2),  E = diag(1/lam) D^T Sq.  E D = I and E[(s - shat)^2] is
//               the least that any code of r numbers reaches; it equals the sum of lam_i^2 over i >
//               r
//   principal   the leading eigenvectors of Sk (PCA)
//   dimensions  plain coordinates, largest E[q_i^2] Var(k_i) first
// All are nested: the first r' numbers of a code of r are the code of r'. Matrices are row-major
// and double; nothing here is fast. Thread rule: pure functions.
#pragma once

#include <span>
#include <vector>

#include "volvelle/base/result.hpp"

namespace volvelle {

enum class CodecKind { kBalanced, kPrincipal, kDimensions };

struct ScoreCodec {
  int dim = 0;
  int rank = 0;
  std::vector<double> encode;  // E [rank, dim]
  std::vector<double> decode;  // D [dim, rank]
  std::vector<double> lambda;  // [dim], descending: sqrt of each coordinate's share in the score's
                               // second moment (principal: if queries were isotropic)
  std::vector<double> spread;  // [dim]: standard deviation of each coordinate of keys
  /// M = D E [dim, dim], an oblique projector.
  std::vector<double> projector() const;
};

/// Sq: E[q q^T], not centred; the sum over the heads of a group when they share a code. Sk: Cov(k).
/// Both [dim, dim]. Eigenvalues below 1e-6 of the largest are raised to that. Fails if a moment is
/// not finite, or rank is not in [1, dim].
Result<ScoreCodec> make_score_codec(CodecKind kind, std::span<const double> query_moment,
                                    std::span<const double> key_covariance, int rank);

/// L(M) = tr((I-M)^T Sq (I-M) Sk), the mean squared score error of the code, for any projector.
double score_error(std::span<const double> projector, std::span<const double> query_moment,
                   std::span<const double> key_covariance);
/// tr(Sq Sk), the score's own second moment.
double score_power(std::span<const double> query_moment, std::span<const double> key_covariance);

}  // namespace volvelle
