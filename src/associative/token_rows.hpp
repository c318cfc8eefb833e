// What the associative memories ask of the rows they are given: how many there are, that they are
// finite, and how keys are scaled before they are written. Thread rule: pure functions.
#pragma once

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>

#include "volvelle/base/result.hpp"

namespace volvelle {

/// Scaling of a key before it enters a memory; the caller's row stays as it is.
enum class KeyScale {
  kNone,  // as given
  kUnit,  // divided by its length (1e-12 is added under the root, so a zero key stays zero)
  kClip,  // divided by max(1, length / sqrt(dim)): small keys stay small, none is large
};

template <class T>
using RowMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Row-major view [size / dim, dim].
template <class T>
Eigen::Map<const RowMatrix<T>> as_rows(std::span<const T> values, Eigen::Index dim) {
  return {values.data(), std::ssize(values) / dim, dim};
}

template <class T>
bool is_finite(std::span<const T> values) noexcept {
  return std::all_of(values.begin(), values.end(), [](T v) { return std::isfinite(v); });
}

/// `values` holds n rows of `dim` finite numbers. Errors: invalid_argument (other size), numeric
/// (NaN or infinity); both name `operation` and `what`.
template <class T>
Status check_rows(const std::string& operation, const char* what, std::span<const T> values,
                  std::size_t n, int dim) {
  if (values.size() != n * static_cast<std::size_t>(dim))
    return Error{ErrorCode::kInvalidArgument,
                 operation + ": expected " + std::to_string(n) + " rows of " + std::to_string(dim) +
                     " numbers as " + what + ", found " + std::to_string(values.size()) +
                     " numbers; give all rows in full"};
  if (!is_finite(values))
    return Error{ErrorCode::kNumeric,
                 operation + ": expected finite " + what +
                     ", found NaN or infinity; the memory is as it was before"};
  return {};
}

/// Errors: numeric (sums went beyond the type of the outputs).
template <class T>
Status check_outputs(const char* operation, std::span<const T> outputs) {
  if (is_finite(outputs)) return {};
  return Error{ErrorCode::kNumeric, std::string(operation) +
                                        ": expected finite outputs, found an overflow; the memory "
                                        "is as it was before"};
}

/// Euclidean length, without overflow. Summed in order: equal rows have equal lengths in every bit,
/// wherever they lie in memory.
template <class T>
double row_length(std::span<const T> row) noexcept {
  double largest = 0.0, sum = 0.0;
  for (const T v : row) largest = std::max(largest, std::abs(static_cast<double>(v)));
  if (largest == 0.0) return 0.0;
  for (const T v : row) sum += (v / largest) * (v / largest);
  return largest * std::sqrt(sum);
}

/// What a row is divided by.
template <class T>
double scale_divisor(std::span<const T> row, KeyScale scale) noexcept {
  if (scale == KeyScale::kUnit) return std::hypot(row_length(row), 1e-6);
  if (scale == KeyScale::kClip)
    return std::max(1.0, row_length(row) / std::sqrt(static_cast<double>(row.size())));
  return 1.0;
}

/// A copy of the rows [n, dim] as double, scaled.
template <class T>
RowMatrix<double> scaled_rows(std::span<const T> rows, int dim, KeyScale scale) {
  RowMatrix<double> scaled = as_rows(rows, dim).template cast<double>();
  for (Eigen::Index t = 0; t < scaled.rows(); ++t)
    scaled.row(t) /= scale_divisor(
        rows.subspan(static_cast<std::size_t>(t * dim), static_cast<std::size_t>(dim)), scale);
  return scaled;
}

}  // namespace volvelle
