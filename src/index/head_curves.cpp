// Products of whole blocks of queries with all keys; diagonals of the product are distances.
#include "index/head_curves.hpp"

#include <algorithm>
#include <cmath>

#include "index/matrix.hpp"
#include "volvelle/index/moments.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kBlock = 256;

double entropy_rank(const HeadSample& sample) {
  Moments keys(sample.dim);
  keys.add(sample.keys.data() + kSinkTokens * sample.dim, sample.n - kSinkTokens, sample.dim);
  const std::vector<double> covariance = keys.covariance();
  const Eigen::SelfAdjointEigenSolver<MatrixD> solver(as_square(covariance, sample.dim),
                                                      Eigen::EigenvaluesOnly);
  const double total = std::max(solver.eigenvalues().cwiseMax(0.0).sum(), 1e-300);
  double entropy = 0.0;
  for (const double value : solver.eigenvalues()) {
    const double share = std::max(value, 0.0) / total;
    if (share > 0.0) entropy -= share * std::log(share);
  }
  return std::exp(entropy);
}

}  // namespace

LogitCurve logit_curve(const HeadSample& sample, int g, std::int64_t max_distance) {
  const Eigen::Map<const MatrixF> keys(sample.keys.data(), sample.n, sample.dim);
  const Eigen::Map<const MatrixF> queries(sample.query(g, 0), sample.n, sample.dim);
  const double scale = sample.scale;
  const auto n = static_cast<std::size_t>(max_distance);
  LogitCurve curve{std::vector<double>(n, 0.0), std::vector<double>(n, 0.0), 0};
  std::vector<double> squares(n, 0.0);
  for (std::int64_t first = max_distance + kSinkTokens; first < sample.n; first += kBlock) {
    const std::int64_t rows = std::min(kBlock, sample.n - first);
    const std::int64_t from = first - max_distance;
    const MatrixF scores =
        queries.middleRows(first, rows) * keys.middleRows(from, rows + max_distance).transpose();
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t d = 1; d <= max_distance; ++d) {
        const double s = scale * static_cast<double>(scores(i, i + max_distance - d));
        curve.mean[static_cast<std::size_t>(d - 1)] += s;
        squares[static_cast<std::size_t>(d - 1)] += s * s;
      }
    }
    curve.n += rows;
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(curve.n, 1));
  for (std::size_t i = 0; i < n; ++i) {
    curve.mean[i] /= count;
    curve.variance[i] = std::max(0.0, squares[i] / count - curve.mean[i] * curve.mean[i]);
  }
  return curve;
}

HeadHabits head_habits(const HeadSample& sample, int g, std::span<const std::int64_t> targets) {
  const Eigen::Map<const MatrixF> keys(sample.keys.data(), sample.n, sample.dim);
  const double scale = sample.scale;
  HeadHabits habits;
  double n_targets = 0.0, n_queries = 0.0;
  const std::int64_t step = std::max<std::int64_t>(1, sample.n / 512);
  for (std::int64_t t = sample.n / 4; t < sample.n; t += step) {
    const Eigen::Map<const Eigen::VectorXf> q(sample.query(g, t), sample.dim);
    const Eigen::ArrayXd s = (keys.topRows(t + 1) * q).cast<double>().array() * scale;
    const Eigen::ArrayXd weights = (s - s.maxCoeff()).exp();
    habits.sink_mass += weights.head(kSinkTokens).sum() / weights.sum();
    n_queries += 1.0;
    const std::int64_t target = targets[static_cast<std::size_t>(t)];
    if (target < kSinkTokens) continue;
    const Eigen::ArrayXd others = s.segment(kSinkTokens, t + 1 - kSinkTokens);
    const double deviation = std::sqrt((others - others.mean()).square().mean());
    if (!(deviation > 0.0)) continue;
    habits.induction_z += (s[target] - others.mean()) / deviation;
    n_targets += 1.0;
  }
  habits.sink_mass /= std::max(n_queries, 1.0);
  habits.induction_z /= std::max(n_targets, 1.0);
  habits.key_rank = entropy_rank(sample);
  return habits;
}

}  // namespace volvelle
