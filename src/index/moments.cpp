// Sums of outer products, a few rows at a time so that they are products of matrices.
#include "volvelle/index/moments.hpp"

#include <algorithm>
#include <cmath>

#include "index/matrix.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kRowsAtOnce = 64;

bool all_finite(const float* row, int n) {
  return std::all_of(row, row + n, [](float x) { return std::isfinite(x); });
}

}  // namespace

Moments::Moments(int dim)
    : dim_(dim),
      sum_(static_cast<std::size_t>(dim), 0.0),
      outer_(static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim), 0.0) {}

void Moments::add(const float* rows, std::int64_t n, std::int64_t stride) {
  MatrixD block(kRowsAtOnce, dim_);
  Eigen::Map<MatrixD> outer(outer_.data(), dim_, dim_);
  Eigen::Map<Eigen::RowVectorXd> sum(sum_.data(), dim_);
  for (std::int64_t begin = 0; begin < n;) {
    Eigen::Index filled = 0;
    for (; filled < kRowsAtOnce && begin < n; ++begin) {
      const float* row = rows + begin * stride;
      if (!all_finite(row, dim_)) {
        ++n_left_out_;
        continue;
      }
      for (int i = 0; i < dim_; ++i) block(filled, i) = static_cast<double>(row[i]);
      ++filled;
    }
    const auto part = block.topRows(filled);
    outer.selfadjointView<Eigen::Lower>().rankUpdate(part.transpose());
    sum += part.colwise().sum();
    weight_ += static_cast<double>(filled);
  }
}

void Moments::add_weighted(std::span<const double> row, double weight) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    sum_[i] += weight * row[i];
    for (std::size_t j = 0; j <= i; ++j) outer_[i * row.size() + j] += weight * row[i] * row[j];
  }
  weight_ += weight;
}

void Moments::merge(const Moments& other) {
  for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += other.sum_[i];
  for (std::size_t i = 0; i < outer_.size(); ++i) outer_[i] += other.outer_[i];
  weight_ += other.weight_;
  n_left_out_ += other.n_left_out_;
}

std::vector<double> Moments::mean() const {
  std::vector<double> mean = sum_;
  for (double& x : mean) x /= std::max(weight_, 1e-300);
  return mean;
}

std::vector<double> Moments::second_moment() const {
  const Eigen::Map<const MatrixD> outer(outer_.data(), dim_, dim_);
  MatrixD full = outer.selfadjointView<Eigen::Lower>();
  full /= std::max(weight_, 1e-300);
  return to_vector(full);
}

std::vector<double> Moments::covariance() const {
  std::vector<double> covariance = second_moment();
  const std::vector<double> mu = mean();
  for (std::size_t i = 0; i < mu.size(); ++i) {
    for (std::size_t j = 0; j < mu.size(); ++j) covariance[i * mu.size() + j] -= mu[i] * mu[j];
  }
  return covariance;
}

std::vector<double> normalised_query_moment(const float* queries, std::int64_t n,
                                            std::int64_t stride,
                                            std::span<const double> key_covariance) {
  const auto dim = static_cast<Eigen::Index>(std::lround(std::sqrt(key_covariance.size())));
  const auto sk = as_square(key_covariance, dim);
  MatrixD sum = MatrixD::Zero(dim, dim);
  std::int64_t used = 0;
  MatrixD block(kRowsAtOnce, dim);
  for (std::int64_t begin = 0; begin < n;) {
    Eigen::Index filled = 0;
    for (; filled < kRowsAtOnce && begin < n; ++begin) {
      const float* row = queries + begin * stride;
      if (!all_finite(row, static_cast<int>(dim))) continue;
      for (Eigen::Index i = 0; i < dim; ++i) block(filled, i) = static_cast<double>(row[i]);
      ++filled;
    }
    auto part = block.topRows(filled);
    const Eigen::VectorXd variance = ((part * sk).array() * part.array()).rowwise().sum();
    for (Eigen::Index r = 0; r < filled; ++r) {
      const bool positive = variance[r] > 0.0;
      part.row(r) *= positive ? 1.0 / std::sqrt(variance[r]) : 0.0;
      used += positive ? 1 : 0;
    }
    sum.selfadjointView<Eigen::Lower>().rankUpdate(part.transpose());
  }
  MatrixD full = sum.selfadjointView<Eigen::Lower>();
  if (used > 0) full /= static_cast<double>(used);
  return to_vector(full);
}

}  // namespace volvelle
