// Streaming first and second moments of keys, values or queries of one head, in double precision.
//
// Moments add up, so parts of a text, threads and heads of a group merge exactly (up to rounding).
// Matrices are row-major [dim, dim]. Cost: dim^2 multiply-adds per row. Thread rule:
// thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace volvelle {

class Moments {
 public:
  explicit Moments(int dim);
  int dim() const noexcept { return dim_; }
  /// Sum of the weights of all rows.
  double weight() const noexcept { return weight_; }
  bool empty() const noexcept { return !(weight_ > 0.0); }

  /// Adds rows [n, dim] with weight 1 each, `stride` floats apart. Rows that hold NaN or infinity
  /// are left out and counted.
  void add(const float* rows, std::int64_t n, std::int64_t stride);
  /// Adds one row with a weight.
  void add_weighted(std::span<const double> row, double weight);
  void merge(const Moments& other);
  std::int64_t n_left_out() const noexcept { return n_left_out_; }

  std::vector<double> mean() const;
  /// E[x x^T], not centred.
  std::vector<double> second_moment() const;
  /// Cov(x): centred, divided by the weight (SAKI, arXiv 2608.03228, keys).
  std::vector<double> covariance() const;

 private:
  int dim_;
  double weight_ = 0.0;
  std::int64_t n_left_out_ = 0;
  std::vector<double> sum_;    // [dim]
  std::vector<double> outer_;  // [dim, dim], lower triangle
};

/// Query moments normalised by each query's own score variance, E[q q^T / (q^T Sk q)]: recall
/// depends on the relative score error of a query, so loud queries must not outweigh the others.
/// queries: [n, dim], key_covariance: [dim, dim]. All zeros if no query has a positive variance.
std::vector<double> normalised_query_moment(const float* queries, std::int64_t n,
                                            std::int64_t stride,
                                            std::span<const double> key_covariance);

}  // namespace volvelle
