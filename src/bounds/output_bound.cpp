// Singular values come from the smaller Gram matrix, in double.
#include "bounds/output_bound.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace volvelle {

namespace {
using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr double kUp = 1.0 + 0x1p-20;  // stored bounds are rounded up
}  // namespace

double value_radius(std::span<const float> values, int dim) {
  const Eigen::Map<const MatrixF> rows(values.data(), std::ssize(values) / dim, dim);
  if (rows.rows() == 0) return 0.0;
  const Eigen::RowVectorXd low = rows.colwise().minCoeff().cast<double>();
  const Eigen::RowVectorXd high = rows.colwise().maxCoeff().cast<double>();
  const Eigen::RowVectorXd middle = (low + high) / 2.0;
  double largest = 0.0;
  for (Eigen::Index i = 0; i < rows.rows(); ++i)
    largest = std::max(largest, (rows.row(i).cast<double>() - middle).norm());
  return largest * kUp;
}

double spectral_norm(std::span<const float> matrix, int n_columns, int first, int n) {
  const Eigen::Map<const MatrixF> whole(matrix.data(), std::ssize(matrix) / n_columns, n_columns);
  const Eigen::MatrixXd part = whole.middleCols(first, n).cast<double>();
  const Eigen::MatrixXd gram = part.transpose() * part;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(gram, Eigen::EigenvaluesOnly);
  return std::sqrt(std::max(0.0, solver.eigenvalues().maxCoeff())) * kUp;
}

double layer_change(std::span<const double> norms, std::span<const double> changes) {
  double sum = 0.0;
  for (std::size_t h = 0; h < norms.size(); ++h) sum += norms[h] * changes[h];
  return sum;
}

}  // namespace volvelle
