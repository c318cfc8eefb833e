// Eigen views of row-major matrices as the public headers give them.
#pragma once

#include <Eigen/Dense>
#include <span>
#include <vector>

namespace volvelle {

using MatrixD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline Eigen::Map<const MatrixD> as_square(std::span<const double> values, Eigen::Index dim) {
  return {values.data(), dim, dim};
}

inline std::vector<double> to_vector(const MatrixD& matrix) {
  return {matrix.data(), matrix.data() + matrix.size()};
}

}  // namespace volvelle
