// From score error to recall of the true top k (SAKI, arXiv 2608.03228; the laws are derived).
//
// rho is the relative score error of a query, E[(s - shat)^2] / Var(s); p = k / n. Thread rule:
// pure functions.
#pragma once

#include <span>

namespace volvelle {

/// Expected recall when scores and errors are near Gaussian: with z = Phi^-1(1 - p),
/// (1/p) Int_z^inf phi(x) Q((z - x sqrt(1 - rho)) / sqrt rho) dx. In [p, 1].
double predicted_recall(double rho, double p);

/// Upper bounds on the expected share of the true top k that is missed, from the margins m_j = |s_j
/// - tau| and the error variances v_j: Cantelli (any centred errors) and sub-Gaussian. Not clipped
/// to 1.
double missed_bound_cantelli(std::span<const double> margins, std::span<const double> variances,
                             double k);
double missed_bound_subgaussian(std::span<const double> margins, std::span<const double> variances,
                                double k);

/// Standard normal distribution: upper tail and its inverse.
double normal_upper_tail(double z);
double normal_upper_quantile(double p);

}  // namespace volvelle
