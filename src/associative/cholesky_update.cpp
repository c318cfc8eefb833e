// Plane rotations to add, mixed hyperbolic rotations to remove: the new row is computed first and
// the vector from the new row, which bounds the error by that of the result (Bojanczyk and others,
// 1987).
#include "associative/cholesky_update.hpp"

#include <cmath>
#include <cstddef>

namespace volvelle {

void cholesky_add(std::span<double> factor, std::span<double> x) noexcept {
  const std::size_t dim = x.size();
  for (std::size_t k = 0; k < dim; ++k) {
    double* row = factor.data() + k * dim;
    const double pivot = std::hypot(row[k], x[k]);
    const double c = row[k] / pivot, s = x[k] / pivot;
    row[k] = pivot;
    for (std::size_t i = k + 1; i < dim; ++i) {
      const double entry = row[i];
      row[i] = c * entry + s * x[i];
      x[i] = c * x[i] - s * entry;
    }
  }
}

bool cholesky_remove(std::span<double> factor, std::span<double> x, double floor) noexcept {
  const std::size_t dim = x.size();
  for (std::size_t k = 0; k < dim; ++k) {
    double* row = factor.data() + k * dim;
    const double squared = (row[k] - x[k]) * (row[k] + x[k]);
    if (!(squared >= floor)) return false;
    const double pivot = std::sqrt(squared);
    const double c = pivot / row[k], s = x[k] / row[k];
    row[k] = pivot;
    for (std::size_t i = k + 1; i < dim; ++i) {
      row[i] = (row[i] - s * x[i]) / c;
      x[i] = c * x[i] - s * row[i];
    }
  }
  return true;
}

}  // namespace volvelle
