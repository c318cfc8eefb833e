// Seeded rows and comparisons for the tests of associative memories.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace volvelle::testing {

template <class T>
std::vector<T> normal_rows(std::mt19937_64& random, int n, int dim) {
  std::normal_distribution<double> normal;
  std::vector<T> rows(static_cast<std::size_t>(n) * static_cast<std::size_t>(dim));
  for (T& x : rows) x = static_cast<T>(normal(random));
  return rows;
}

template <class T>
std::vector<T> unit_rows(std::mt19937_64& random, int n, int dim) {
  std::vector<T> rows = normal_rows<T>(random, n, dim);
  for (std::size_t begin = 0; begin < rows.size(); begin += static_cast<std::size_t>(dim)) {
    double sum = 0;
    for (int j = 0; j < dim; ++j) sum += std::pow(rows[begin + static_cast<std::size_t>(j)], 2);
    for (int j = 0; j < dim; ++j) rows[begin + static_cast<std::size_t>(j)] /= std::sqrt(sum);
  }
  return rows;
}

/// dim orthonormal rows.
inline std::vector<double> orthonormal_rows(std::mt19937_64& random, int dim) {
  const std::vector<double> rows = normal_rows<double>(random, dim, dim);
  const Eigen::Map<const Eigen::MatrixXd> matrix(rows.data(), dim, dim);
  const Eigen::MatrixXd q = Eigen::HouseholderQR<Eigen::MatrixXd>(matrix).householderQ();
  return {q.data(), q.data() + q.size()};
}

/// Rows [begin, begin + n) of a row-major matrix.
template <class T>
std::span<const T> part(const std::vector<T>& rows, int dim, int begin, int n) {
  return std::span<const T>(rows).subspan(static_cast<std::size_t>(begin * dim),
                                          static_cast<std::size_t>(n * dim));
}

/// |a - b| / |b|, Euclidean.
template <class A, class B>
double relative_error(const A& a, const B& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace volvelle::testing
