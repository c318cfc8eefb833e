// Effective sample size, noise edge and shrinkage; see the header for the formulas.
#include "index/spectrum.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "index/matrix.hpp"

namespace volvelle {

std::vector<double> autocorrelation(const float* rows, std::int64_t n, std::int64_t stride, int dim,
                                    std::int64_t max_lag) {
  std::vector<double> rho(static_cast<std::size_t>(max_lag) + 1, 0.0);
  if (n < 2) {
    rho[0] = 1.0;
    return rho;
  }
  std::vector<double> column(static_cast<std::size_t>(n));
  for (int i = 0; i < dim; ++i) {
    double mean = 0.0;
    for (std::int64_t t = 0; t < n; ++t) mean += static_cast<double>(rows[t * stride + i]);
    mean /= static_cast<double>(n);
    double variance = 0.0;
    for (std::int64_t t = 0; t < n; ++t) {
      column[static_cast<std::size_t>(t)] = static_cast<double>(rows[t * stride + i]) - mean;
      variance += column[static_cast<std::size_t>(t)] * column[static_cast<std::size_t>(t)];
    }
    if (!(variance > 0.0)) continue;
    for (std::int64_t lag = 0; lag <= max_lag && lag < n; ++lag) {
      double sum = 0.0;
      for (std::size_t t = static_cast<std::size_t>(lag); t < column.size(); ++t)
        sum += column[t] * column[t - static_cast<std::size_t>(lag)];
      // Mean of the products over the n - lag pairs there are.
      rho[static_cast<std::size_t>(lag)] +=
          sum / variance * static_cast<double>(n) / static_cast<double>(n - lag) / dim;
    }
  }
  return rho;
}

std::int64_t inflation_lags(std::int64_t n) {
  if (n < 2) return 0;
  const auto lags = static_cast<std::int64_t>(10.0 * std::log10(static_cast<double>(n)));
  return std::min(lags, n - 1);
}

double variance_inflation(std::span<const double> rho, std::int64_t n, int dim) {
  const double noise = 1.0 / (static_cast<double>(n) * dim);
  double tau = 1.0;
  for (std::size_t lag = 1; lag < rho.size(); ++lag) {
    const double squared = std::max(rho[lag] * rho[lag] - noise, 0.0);
    tau += 2.0 * (1.0 - static_cast<double>(lag) / static_cast<double>(n)) * squared;
  }
  return tau;
}

double noise_edge(double q) {
  const double root = 1.0 + std::sqrt(q);
  return root * root;
}

namespace {

/// f(u) = 1/u + mean over frequencies of c / (1 - q c u).
double edge_function(double u, double q, std::span<const double> spectrum) {
  double sum = 0.0;
  for (const double c : spectrum) sum += c / (1.0 - q * c * u);
  return 1.0 / u + sum / static_cast<double>(spectrum.size());
}

std::vector<double> spectrum_of(std::span<const double> rho) {
  constexpr int kFrequencies = 2048;  // of (0, pi); the spectrum is even
  std::vector<double> spectrum;
  for (int k = 0; k < kFrequencies; ++k) {
    const double w = std::numbers::pi * (k + 0.5) / kFrequencies;
    double c = 1.0;
    for (std::size_t lag = 1; lag < rho.size(); ++lag)
      c += 2.0 * rho[lag] * std::cos(static_cast<double>(lag) * w);
    spectrum.push_back(std::max(c, 0.0));
  }
  return spectrum;
}

}  // namespace

double noise_edge(double q, std::span<const double> rho) {
  const std::vector<double> spectrum = spectrum_of(rho);
  const double largest = *std::max_element(spectrum.begin(), spectrum.end());
  // f is convex on (0, 1 / (q c_max)); golden section.
  double low = 1e-9;
  double high = (1.0 - 1e-9) / (q * largest);
  const double ratio = (std::sqrt(5.0) - 1.0) / 2.0;
  for (int step = 0; step < 200 && high - low > 1e-12 * high; ++step) {
    const double a = high - ratio * (high - low);
    const double b = low + ratio * (high - low);
    if (edge_function(a, q, spectrum) < edge_function(b, q, spectrum)) {
      high = b;
    } else {
      low = a;
    }
  }
  return edge_function((low + high) / 2.0, q, spectrum);
}

double inflation_of(const float* rows, std::int64_t n, std::int64_t stride, int dim) {
  const std::vector<double> rho = autocorrelation(rows, n, stride, dim, inflation_lags(n));
  return variance_inflation(rho, n, dim);
}

int count_spikes(const float* rows, std::int64_t n, int dim, std::span<const double> covariance) {
  const auto cov = as_square(covariance, dim);
  const Eigen::VectorXd scale = cov.diagonal().cwiseMax(1e-300).cwiseSqrt().cwiseInverse();
  const MatrixD correlation = scale.asDiagonal() * cov * scale.asDiagonal();
  const Eigen::SelfAdjointEigenSolver<MatrixD> solver(correlation, Eigen::EigenvaluesOnly);
  const std::vector<double> rho = autocorrelation(rows, n, dim, dim, inflation_lags(n));
  // The edge itself is met by noise now and then.
  const double edge = 1.02 * noise_edge(static_cast<double>(dim) / static_cast<double>(n), rho);
  return static_cast<int>((solver.eigenvalues().array() > edge).count());
}

Spike invert_spike(double y, double gamma) {
  const double a = y + 1.0 - gamma;
  const double root = std::sqrt(std::max(a * a - 4.0 * y, 0.0));
  const double ell = (a + root) / 2.0;
  const double excess = ell - 1.0;
  if (!(excess > std::sqrt(gamma))) return {ell, 0.0};
  return {ell, (1.0 - gamma / (excess * excess)) / (1.0 + gamma / excess)};
}

double shrinkage_intensity(std::span<const double> moment, double effective_rows) {
  const auto dim = static_cast<std::size_t>(std::lround(std::sqrt(moment.size())));
  double trace = 0.0;
  double squares = 0.0;
  for (std::size_t i = 0; i < dim; ++i) trace += moment[i * dim + i];
  for (const double x : moment) squares += x * x;
  const double spread = squares - trace * trace / static_cast<double>(dim);
  if (!(spread > 0.0)) return 1.0;
  return std::min(1.0, (trace * trace + squares) / effective_rows / spread);
}

void shrink(std::span<double> moment, double alpha) {
  const auto dim = static_cast<std::size_t>(std::lround(std::sqrt(moment.size())));
  double trace = 0.0;
  for (std::size_t i = 0; i < dim; ++i) trace += moment[i * dim + i];
  for (double& x : moment) x *= 1.0 - alpha;
  for (std::size_t i = 0; i < dim; ++i)
    moment[i * dim + i] += alpha * trace / static_cast<double>(dim);
}

}  // namespace volvelle
