// mu(D) = sum_b (A_b cos phi_b) cos(theta_b D) - (A_b sin phi_b) sin(theta_b D), so a table of
// cosines and sines times one vector is the curve of a head.
#include "index/band_curves.hpp"

#include <algorithm>
#include <cmath>

#include "index/matrix.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kTableCells = std::int64_t{1} << 22;
constexpr std::int64_t kBlock = 1024;
// The window [D / 1.6, 1.6 D] has 614 steps of ln(1.01) / 13 to each side, to 2e-4.
constexpr int kFineSteps = 13;
constexpr int kHalfWindow = 614;

/// [cos | sin] coefficients of a curve.
Eigen::VectorXd coefficients(const LogitBands& logits) {
  const auto m = static_cast<Eigen::Index>(logits.amplitude.size());
  Eigen::VectorXd c(2 * m);
  for (Eigen::Index b = 0; b < m; ++b) {
    const auto at = static_cast<std::size_t>(b);
    const double phase = logits.phase.empty() ? 0.0 : logits.phase[at];
    c[b] = logits.amplitude[at] * std::cos(phase);
    c[b + m] = -logits.amplitude[at] * std::sin(phase);
  }
  return c;
}

/// Row D: cosines of all bands, then their sines.
MatrixD table_of(const BandFrequencies& bands, std::int64_t limit) {
  const auto m = static_cast<Eigen::Index>(bands.size());
  MatrixD table(limit + 1, 2 * m);
  for (Eigen::Index d = 0; d <= limit; ++d) {
    for (Eigen::Index b = 0; b < m; ++b) {
      const double angle = bands.angle(static_cast<std::size_t>(b), static_cast<std::uint64_t>(d));
      table(d, b) = std::cos(angle);
      table(d, b + m) = std::sin(angle);
    }
  }
  return table;
}

/// Distances 1, 1.01, 1.01^2, ... below the limit.
std::vector<double> smoothing_grid(std::int64_t limit) {
  std::vector<double> grid;
  for (double d = 1.0; d < static_cast<double>(limit); d *= 1.01) grid.push_back(d);
  return grid;
}

/// The same rows averaged over [D / 1.6, 1.6 D] evenly in ln D, at the distances of the grid: a
/// running sum over a finer one.
MatrixD smoothed_table(const BandFrequencies& bands, std::size_t n_points) {
  const auto m = static_cast<Eigen::Index>(bands.size());
  const auto n = static_cast<Eigen::Index>(n_points);
  MatrixD table(n, 2 * m);
  if (n == 0) return table;
  const double step = std::log(1.01) / kFineSteps;
  MatrixD sums = MatrixD::Zero((n - 1) * kFineSteps + 2 * kHalfWindow + 2, 2 * m);
  for (Eigen::Index i = 0; i + 1 < sums.rows(); ++i) {
    const double distance = std::exp(step * static_cast<double>(i - kHalfWindow));
    for (Eigen::Index b = 0; b < m; ++b) {
      const double angle = bands.theta[static_cast<std::size_t>(b)] * distance;
      sums(i + 1, b) = sums(i, b) + std::cos(angle);
      sums(i + 1, b + m) = sums(i, b + m) + std::sin(angle);
    }
  }
  constexpr int kWindow = 2 * kHalfWindow + 1;
  for (Eigen::Index i = 0; i < n; ++i)
    table.row(i) = (sums.row(i * kFineSteps + kWindow) - sums.row(i * kFineSteps)) / kWindow;
  return table;
}

}  // namespace

struct BandCurves::Tables {
  BandFrequencies bands;
  std::int64_t limit = 0;
  MatrixD curve;             // [limit + 1, 2 n_bands]
  std::vector<double> grid;  // distances of `smoothed`
  MatrixD smoothed;          // [grid, 2 n_bands]
};

BandCurves::BandCurves(const BandFrequencies& bands, std::int64_t limit) {
  const auto n = static_cast<std::int64_t>(std::max<std::size_t>(1, bands.size()));
  auto made = std::make_unique<Tables>();
  made->bands = bands;
  made->limit = std::max<std::int64_t>(1, std::min(limit, kTableCells / n));
  made->curve = table_of(bands, made->limit);
  made->grid = smoothing_grid(made->limit);
  made->smoothed = smoothed_table(bands, made->grid.size());
  tables_ = std::move(made);
}
BandCurves::~BandCurves() = default;
BandCurves::BandCurves(BandCurves&&) noexcept = default;

std::int64_t BandCurves::limit() const noexcept { return tables_->limit; }
const BandFrequencies& BandCurves::bands() const noexcept { return tables_->bands; }

RetrievalRange BandCurves::range(const LogitBands& logits, double threshold) const {
  // The closed forms; its searches end at once.
  RetrievalRange range = retrieval_range(tables_->bands, logits, threshold, 1);
  const Eigen::VectorXd c = coefficients(logits);
  range.hard = tables_->limit;
  for (std::int64_t first = 1; first <= tables_->limit; first += kBlock) {
    const std::int64_t n = std::min(kBlock, tables_->limit + 1 - first);
    const Eigen::VectorXd mu = tables_->curve.middleRows(first, n) * c;
    const auto* const below =
        std::find_if(mu.data(), mu.data() + n, [&](double value) { return value < threshold; });
    if (below == mu.data() + n) continue;
    range.hard = first + (below - mu.data()) - 1;
    break;
  }
  range.smoothed = static_cast<double>(tables_->limit);
  const Eigen::VectorXd mu = tables_->smoothed * c;
  for (std::size_t i = 0; i < tables_->grid.size(); ++i) {
    if (mu[static_cast<Eigen::Index>(i)] >= threshold) continue;
    range.smoothed = tables_->grid[i];
    break;
  }
  return range;
}

KernelAlias BandCurves::alias(std::span<const double> weights, std::int64_t last) const {
  const Eigen::Map<const Eigen::VectorXd> w(weights.data(), std::ssize(weights));
  const std::int64_t n = std::min(last, tables_->limit) + 1;
  const Eigen::VectorXd table = tables_->curve.topLeftCorner(n, w.size()) * w;
  return kernel_alias({table.data(), static_cast<std::size_t>(n)});
}

}  // namespace volvelle
