// The bound, evaluated in double. Notation of docs/numerics.md: h_j bounds |e_j|,
//   rho = (e^h - 1 - h) / h^2,   kappa = m sigma / 2 + rho sigma^2 / 2,   m = sqrt(3) / 2
//   A+ = sum over T of (w - w')_+,   A- = sum over T of (w' - w)_+,   TV <= max(A+, A-) / Z'
// Each set of unread rows is bounded by the largest t in it.
#include "bounds/dithered_variation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace volvelle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMean = std::numbers::sqrt3 / 2.0;  // E|e| <= kMean sigma for any sum of uniforms

/// ln of the bound of E exp(t (X - EX)) for X = g_+ + eta g_+^2 in units of sigma.
double log_moment(double t, double eta) {
  const double r = 1.0 - 2.0 * t * eta;
  if (r <= 1e-6) return kInfinity;
  const double normal = std::sqrt(2.0 / std::numbers::pi);
  const double argument = t / std::sqrt(r);
  const double large = t * t / (2.0 * r) - 0.5 * std::log(r) +
                       std::log(0.5 * std::erfc(-argument / std::numbers::sqrt2));
  const double shift = std::max(large, 0.0);
  const double sum =
      std::exp(large - shift) + std::exp(-shift) * (0.5 + 0.5 * t * (kMean - normal));
  return shift + std::log(sum) - 0.5 * t * kMean - 0.5 * t * eta;
}

constexpr std::array<double, 23> kPoints = {.05, .1, .2, .3, .45, .6, .8, 1,  1.25, 1.5, 2, 2.5,
                                            3,   4,  5,  6,  7,   8,  10, 12, 16,   24,  40};
constexpr double kEtaStep = 0.005;
constexpr int kEtas = 81;  // eta up to 0.4; beyond it only the bound without probability is used

/// C_eta at kPoints: sup over 0 < t <= y of 2 log_moment(t) / t^2. The function grows with t; the
/// largest over a fine grid, a thousandth more.
using Row = std::array<double, kPoints.size()>;
Row make_row(double eta) {
  Row row{};
  double largest = 0.0;
  double t = 0.01;
  for (std::size_t i = 0; i < kPoints.size(); ++i) {
    for (; t < kPoints[i] - 1e-9; t += t < 1.0 ? 0.01 : t < 8.0 ? 0.02 : 0.1)
      largest = std::max(largest, 2.0 * log_moment(t, eta) / (t * t));
    const double y = kPoints[i];
    largest = std::max(largest, 2.0 * log_moment(y, eta) / (y * y));
    row[i] = largest * 1.001;
  }
  return row;
}

const std::vector<Row>& table() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> made;
    for (int i = 0; i < kEtas; ++i) made.push_back(make_row(kEtaStep * i));
    return made;
  }();
  return rows;
}

/// The row of the next larger eta, or nothing.
const Row* row_of(double eta) {
  const double at = std::ceil(eta / kEtaStep - 1e-12);
  return at >= 0.0 && at < kEtas ? &table()[static_cast<std::size_t>(at)] : nullptr;
}

double square(double x) { return x * x; }

/// (e^h - 1 - h) / h^2
double remainder_of(double h) {
  return h > 1e-4 ? (std::expm1(h) - h) / (h * h) : 0.5 + h / 6.0 + h * h / 20.0;
}

}  // namespace

void prepare_deviation_table() { table(); }

double deviation_constant(double y, double eta) noexcept {
  const Row* row = row_of(eta);
  if (row == nullptr) return kInfinity;
  const auto at = std::lower_bound(kPoints.begin(), kPoints.end(), y - 1e-12);
  return at == kPoints.end() ? kInfinity : (*row)[static_cast<std::size_t>(at - kPoints.begin())];
}

double deviation_bound(double variance, double largest, double log_terms, double eta) noexcept {
  if (!(variance > 0.0)) return 0.0;
  const Row* row = row_of(eta);
  if (row == nullptr || !std::isfinite(variance) || !std::isfinite(largest)) return kInfinity;
  double best = kInfinity;
  for (std::size_t i = 0; i < kPoints.size(); ++i) {
    const double c = (*row)[i];
    if (!std::isfinite(c)) break;
    double lambda = std::sqrt(2.0 * log_terms / (variance * c));
    if (largest > 0.0) lambda = std::min(lambda, kPoints[i] / largest);
    best = std::min(best, log_terms / lambda + 0.5 * lambda * variance * c);
  }
  return best;
}

DitheredVariation::DitheredVariation(const DitheredRead& read) noexcept
    : read_(read),
      deviation_(std::exp(read.slack)),
      reach_(std::min(std::sqrt(2.0 * read.log_terms) * read.sigma, read.reach)) {}

void DitheredVariation::add(const UnreadRows& rows) noexcept {
  const double h = reach_ * rows.max_t;
  // Far beyond what any code is good for.
  if (!(h <= 60.0)) upward_ = kInfinity;
  largest_h_ = std::max(largest_h_, h);
  if (!(rows.max_w > 0.0) || !(h <= 60.0)) return;
  any_unread_ = true;
  const double sigma = read_.sigma * rows.max_t;
  const double growth = std::exp(h);
  const double rho = remainder_of(h);
  const double sum = rows.sum_wt * deviation_;
  const double squares = rows.sum_wt_squared * square(deviation_ * read_.sigma);
  sum_ += sum * read_.sigma;
  squares_ += squares;
  grown_squares_ += squares * growth * growth;
  largest_sigma_ = std::max(largest_sigma_, sigma);
  largest_q_ = std::max(largest_q_, square(sigma) * rows.max_w * deviation_ * (1.0 + growth));
  largest_grown_ = std::max(largest_grown_, rows.max_wt * deviation_ * read_.sigma * growth);
  // (e^x - 1) / x grows with x, so the largest h of the set serves all of it.
  upward_ += sum * reach_ * (h > 0.0 ? std::expm1(h) / h : 1.0);
  downward_ += sum * reach_;
  kappa_sum_ += sum * read_.sigma * 0.5 * (kMean + rho * sigma);
  largest_kappa_ = std::max(largest_kappa_, 0.5 * sigma * (kMean + rho * sigma));
  eta_ = std::max(eta_, rho * sigma);
  threshold_ = std::max(threshold_, std::log(rows.max_w) + h + 2.0 * read_.slack);
}

void DitheredVariation::add(const ReadRow& row) noexcept {
  if (!(row.weight > 0.0) || std::log(row.weight) > threshold_) return;
  const double sigma = read_.sigma * row.t;
  const double h = reach_ * row.t;
  if (!(h <= 60.0)) upward_ = kInfinity;
  const double rho = remainder_of(h);
  const double larger = row.weight * deviation_;
  const double smaller = row.weight / deviation_;
  const double up = std::max(row.error - 2.0 * read_.slack, 0.0);
  const double down = std::max(-row.error - 2.0 * read_.slack, 0.0);
  read_squares_ += square(larger * sigma);
  largest_grown_ = std::max(largest_grown_, larger * sigma);
  eta_ = std::max(eta_, rho * sigma);
  below_ += larger * 0.5 * kMean * sigma - smaller * down;
  above_ += larger * 0.5 * sigma * (kMean + rho * sigma) - smaller * up * (1.0 + rho * up);
}

/// correction + mean + slope x + F_eta(V(x), M), at least 0.
double DitheredVariation::excess(double x, double correction, double mean, double slope,
                                 double eta) const noexcept {
  const double variance = read_squares_ + std::min(squares_ + largest_q_ * x, grown_squares_);
  const double sum = correction + mean + slope * x +
                     deviation_bound(variance, largest_grown_, read_.log_terms, eta);
  return std::isnan(sum) ? kInfinity : std::max(0.0, sum);
}

double DitheredVariation::bound(double total) const noexcept {
  if (!std::isfinite(upward_)) return kInfinity;
  // A float weight of 0 stands for up to 2^-126 of the largest one, times what its error hides.
  const double vanished = read_.n_rows * 0x1p-126 * std::exp(largest_h_) * deviation_ / total;
  if (!any_unread_) return vanished;
  double x = upward_;
  for (int i = 0; i < 4; ++i)
    x = std::min(x, excess(x, below_, 0.5 * kMean * sum_, 0.5 * kMean * largest_sigma_, 0.0));
  const double y = std::min(downward_, excess(x, above_, kappa_sum_, largest_kappa_, eta_));
  return std::max(x, y) * deviation_ / total + 0.5 * read_.slack + vanished;
}

}  // namespace volvelle
