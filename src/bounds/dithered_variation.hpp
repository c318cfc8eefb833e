// A bound of the total variation between the attention weights of a read and the exact ones when
// the rows that are not read exactly count with weights from dithered codes.
//
// Coded scores are shat_j = s_j + e_j, e_j = t_j sum_i a_i step_i u_ij with u_ij independent and
// uniform on [-1/2, 1/2]; t_j is the scale of row j's code. For any set T of unread rows, chosen in
// whatever way from whatever is known,
//
//   P(TV > bound) <= delta
//
// if the query does not depend on the dither. The proof and what may be said of it stand in
// docs/numerics.md. Rounding enters as `slack`: what computed and ideal coded scores may differ by.
// Thread rule: pure arithmetic; the first call of all fills a table.
#pragma once

namespace volvelle {

/// g_n = n u / (1 - n u), u = 2^-24: the relative error of a float sum of n terms.
constexpr double float_sum_slack(double n) noexcept {
  constexpr double kUnit = 0x1p-24;
  return n * kUnit / (1.0 - n * kUnit);
}

/// One query head's read.
struct DitheredRead {
  double sigma = 0.0;      // standard deviation of a coded score per unit of t, natural units
  double reach = 0.0;      // its largest error per unit of t
  double slack = 0.0;      // largest rounding error of any coded score
  double n_rows = 0.0;     // coded rows: each may have a weight that vanished in a float
  double log_terms = 0.0;  // ln(4 n_coded_rows n_heads_that_must_hold / delta)
};

/// Sums over some of the unread rows; w' = e^shat on the scale of all weights of the read.
struct UnreadRows {
  double sum_wt = 0.0;
  double sum_wt_squared = 0.0;  // sum of (w' t)^2
  double max_w = 0.0;
  double max_wt = 0.0;
  double max_t = 0.0;
};

/// A coded row that was read exactly.
struct ReadRow {
  double weight = 0.0;  // e^s
  double error = 0.0;   // shat - s; 0 if it is not known
  double t = 0.0;
};

/// Takes all unread rows, then all coded rows that were read, then says the bound.
class DitheredVariation {
 public:
  explicit DitheredVariation(const DitheredRead& read) noexcept;
  void add(const UnreadRows& rows) noexcept;
  void add(const ReadRow& row) noexcept;
  /// `total`: all weights of the read (exact ones where it was exact, coded ones elsewhere), at
  /// most what the read divides by. 0 without unread rows; may exceed 1.
  double bound(double total) const noexcept;

 private:
  double excess(double x, double correction, double mean, double slope, double eta) const noexcept;

  DitheredRead read_;
  double deviation_;  // e^slack, which scales computed weights up to ideal ones
  double reach_;      // h_j = reach_ t_j bounds every error with the promised probability
  // over unread rows
  bool any_unread_ = false;
  double sum_ = 0.0;            // w sigma
  double squares_ = 0.0;        // (w sigma)^2
  double grown_squares_ = 0.0;  // (w sigma e^h)^2
  double largest_sigma_ = 0.0;
  double largest_q_ = 0.0;      // sigma^2 w (1 + e^h)
  double largest_grown_ = 0.0;  // w sigma e^h, of unread and read rows
  double upward_ = 0.0;         // w (e^h - 1)
  double downward_ = 0.0;       // w (1 - e^-h)
  double kappa_sum_ = 0.0;
  double largest_kappa_ = 0.0;
  double largest_h_ = 0.0;
  double eta_ = 0.0;           // rho sigma, of unread and read rows
  double threshold_ = -1e300;  // log weight that read rows must reach to be safe from confusion
  // over read rows below the threshold
  double read_squares_ = 0.0;
  double below_ = 0.0;  // correction of too small weights
  double above_ = 0.0;  // of too large ones
};

/// Fills the table of constants; else the first bound does. It allocates.
void prepare_deviation_table();

/// min over lambda > 0 of L / lambda + lambda V C_eta(lambda M) / 2: what a sum of independent
/// terms with variance scale V and largest term M exceeds its mean by, with probability at most
/// e^-L.
double deviation_bound(double variance, double largest, double log_terms, double eta) noexcept;
/// C_eta(y) at a point of the table, rounded up; infinity where the moment does not exist.
double deviation_constant(double y, double eta) noexcept;

}  // namespace volvelle
