// The closed forms of score codes. A singular Sk or Sq needs no case of its own: directions without
// keys carry no score, and the floor on the eigenvalues keeps E finite.
#include "volvelle/index/score_codec.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "index/matrix.hpp"

namespace volvelle {
namespace {

using Eigen::Index;
using Eigen::VectorXd;
constexpr double kFloor = 1e-6;  // of the largest eigenvalue

struct Eigensystem {
  VectorXd values;  // descending
  MatrixD vectors;  // columns
};

Eigensystem solve_symmetric(const MatrixD& matrix) {
  const Eigen::SelfAdjointEigenSolver<MatrixD> solver((matrix + matrix.transpose()) / 2.0);
  return {solver.eigenvalues().reverse(), solver.eigenvectors().rowwise().reverse()};
}

ScoreCodec codec_of(const MatrixD& encode, const MatrixD& decode, const VectorXd& lambda,
                    const VectorXd& spread) {
  ScoreCodec codec;
  codec.dim = static_cast<int>(encode.cols());
  codec.rank = static_cast<int>(encode.rows());
  codec.encode = to_vector(encode);
  codec.decode = to_vector(decode);
  codec.lambda.assign(lambda.data(), lambda.data() + lambda.size());
  codec.spread.assign(spread.data(), spread.data() + spread.size());
  return codec;
}

/// The largest eigenvalue as the measure of the others; 1 for a matrix of zeros, so that rows or
/// queries that never vary still have a code.
double largest_of(const Eigensystem& system) {
  return system.values[0] > 1e-30 ? system.values[0] : 1.0;
}

ScoreCodec balanced(const MatrixD& sq, const MatrixD& sk, Index rank) {
  const Eigensystem keys = solve_symmetric(sk);
  const VectorXd root = keys.values.cwiseMax(kFloor * largest_of(keys)).cwiseSqrt();
  const MatrixD l = keys.vectors * root.asDiagonal();
  const MatrixD l_inverse = root.cwiseInverse().asDiagonal() * keys.vectors.transpose();
  const Eigensystem scores = solve_symmetric(l.transpose() * sq * l);
  const VectorXd lambda = scores.values.cwiseMax(kFloor * kFloor * largest_of(scores)).cwiseSqrt();
  const VectorXd half = lambda.cwiseSqrt();
  const MatrixD decode = l * scores.vectors * half.cwiseInverse().asDiagonal();
  const MatrixD encode = half.asDiagonal() * (scores.vectors.transpose() * l_inverse);
  return codec_of(encode.topRows(rank), decode.leftCols(rank), lambda, half);
}

ScoreCodec principal(const MatrixD& sk, Index rank) {
  const Eigensystem keys = solve_symmetric(sk);
  const MatrixD basis = keys.vectors.leftCols(rank);
  const VectorXd spread = keys.values.cwiseMax(kFloor * largest_of(keys)).cwiseSqrt();
  return codec_of(basis.transpose(), basis, spread, spread);
}

ScoreCodec dimensions(const MatrixD& sq, const MatrixD& sk, Index rank) {
  const Index dim = sq.rows();
  const VectorXd power = sq.diagonal().cwiseProduct(sk.diagonal());
  std::vector<Index> order(static_cast<std::size_t>(dim));
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](Index a, Index b) { return power[a] > power[b]; });
  MatrixD encode = MatrixD::Zero(rank, dim);
  VectorXd lambda(dim);
  VectorXd spread(dim);
  for (Index i = 0; i < dim; ++i) {
    const Index from = order[static_cast<std::size_t>(i)];
    lambda[i] = std::sqrt(std::max(power[from], 0.0));
    spread[i] = std::sqrt(std::max(sk(from, from), 0.0));
    if (i < rank) encode(i, from) = 1.0;
  }
  return codec_of(encode, encode.transpose(), lambda, spread);
}

}  // namespace

std::vector<double> ScoreCodec::projector() const {
  const Eigen::Map<const MatrixD> e(encode.data(), rank, dim);
  const Eigen::Map<const MatrixD> d(decode.data(), dim, rank);
  return to_vector(d * e);
}

Result<ScoreCodec> make_score_codec(CodecKind kind, std::span<const double> query_moment,
                                    std::span<const double> key_covariance, int rank) {
  const auto dim = static_cast<Index>(std::lround(std::sqrt(query_moment.size())));
  if (query_moment.size() != key_covariance.size() || dim < 1 ||
      static_cast<std::size_t>(dim * dim) != query_moment.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "index: expected two square matrices of one size, got " +
                     std::to_string(query_moment.size()) + " and " +
                     std::to_string(key_covariance.size()) + " entries"};
  }
  if (rank < 1 || rank > dim) {
    return Error{ErrorCode::kInvalidArgument,
                 "index: expected a rank from 1 to the head dimension " + std::to_string(dim) +
                     ", got " + std::to_string(rank)};
  }
  const MatrixD sq = as_square(query_moment, dim);
  const MatrixD sk = as_square(key_covariance, dim);
  if (!sq.allFinite() || !sk.allFinite()) {
    return Error{ErrorCode::kNumeric,
                 "index: the moments of keys or queries hold NaN or infinity; the model file is "
                 "damaged or its numbers overflow"};
  }
  if (kind == CodecKind::kBalanced) return balanced(sq, sk, rank);
  if (kind == CodecKind::kPrincipal) return principal(sk, rank);
  return dimensions(sq, sk, rank);
}

double score_error(std::span<const double> projector, std::span<const double> query_moment,
                   std::span<const double> key_covariance) {
  const auto dim = static_cast<Index>(std::lround(std::sqrt(projector.size())));
  const MatrixD rest = MatrixD::Identity(dim, dim) - MatrixD(as_square(projector, dim));
  return (rest.transpose() * as_square(query_moment, dim) * rest * as_square(key_covariance, dim))
      .trace();
}

double score_power(std::span<const double> query_moment, std::span<const double> key_covariance) {
  const auto dim = static_cast<Index>(std::lround(std::sqrt(query_moment.size())));
  return (as_square(query_moment, dim) * as_square(key_covariance, dim)).trace();
}

}  // namespace volvelle
