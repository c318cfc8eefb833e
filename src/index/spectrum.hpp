// How many independent samples stand behind a covariance, what pure noise would look like, and how
// far to shrink (SAKI, arXiv 2608.03228; random matrix theory of autocorrelated samples).
//
// Second moments of a process with autocorrelation rho_l are as good as those of T / tau2
// independent rows, tau2 = 1 + 2 sum (1 - l/T) rho_l^2: products decorrelate as rho_l^2. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace volvelle {

/// Autocorrelation of rows [n, dim] averaged over standardised coordinates, lags 0 to max_lag.
std::vector<double> autocorrelation(const float* rows, std::int64_t n, std::int64_t stride, int dim,
                                    std::int64_t max_lag);

/// tau2 from autocorrelations of n rows of `dim` coordinates; the noise 1 / (n dim) of a squared
/// correlation is taken off first. At least 1.
double variance_inflation(std::span<const double> rho, std::int64_t n, int dim);
/// Lags that variance_inflation() needs of n rows: 10 log10 n.
std::int64_t inflation_lags(std::int64_t n);

/// variance_inflation() of rows [n, dim] with `stride` floats between them.
double inflation_of(const float* rows, std::int64_t n, std::int64_t stride, int dim);
/// Eigenvalues of the correlation matrix of rows [n, dim] above the edge of pure noise;
/// `covariance`: theirs, [dim, dim].
int count_spikes(const float* rows, std::int64_t n, int dim, std::span<const double> covariance);

/// Upper edge of the eigenvalues of the sample correlation matrix of pure noise, q = dim / n.
/// Independent rows: (1 + sqrt q)^2.
double noise_edge(double q);
/// The exact edge for rows with autocorrelations `rho`: min over u of 1/u + mean_w c(w) / (1 - q
/// c(w) u), c(w) = 1 + 2 sum rho_l cos(l w).
double noise_edge(double q, std::span<const double> rho);

/// Population value of a sample eigenvalue y above the edge, and the squared overlap of its vector
/// with the true one (spiked model, gamma = dim / effective rows).
struct Spike {
  double value = 0.0;
  double overlap = 0.0;
};
Spike invert_spike(double y, double gamma);

/// Share of the identity in the shrunk moment: min(1, ((t^2 + t2) / n) / (t2 - t^2 / d)), t = tr S,
/// t2 = |S|^2, n = effective rows. 1 where the spectrum can not be told from noise.
double shrinkage_intensity(std::span<const double> moment, double effective_rows);
/// S <- (1 - alpha) S + alpha (tr S / d) I.
void shrink(std::span<double> moment, double alpha);

}  // namespace volvelle
