// Whole blocks of products: scores with stored and edited keys in float, as kernels round them, and
// bounds in double, whose own rounding is far below the slack.
#include "bounds/edit_audit.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <bit>
#include <cmath>

namespace volvelle {
namespace {

using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MapF = Eigen::Map<const MatrixF>;

constexpr std::int64_t kBlock = 512;  // keys at once
constexpr double kUnit = 0x1p-24;

MapF rows_of(std::span<const float> rows, int dim) {
  return {rows.data(), std::ssize(rows) / dim, dim};
}

/// Lengths of the bands of rows, and of their unrotated part behind them, [n, n_bands + 1].
MatrixD lengths(const BandLayout& layout, const MatrixD& rows) {
  MatrixD out(rows.rows(), layout.n_bands() + 1);
  for (int b = 0; b < layout.n_bands(); ++b) {
    out.col(b) =
        (rows.col(layout.first(b)).array().square() + rows.col(layout.second(b)).array().square())
            .sqrt();
  }
  out.col(layout.n_bands()) =
      rows.rightCols(layout.head_dim - layout.rotated_dims).rowwise().norm();
  return out;
}

/// Edits of the n keys behind `first` that are known beforehand, [n, n_bands + 1].
MatrixD known_lengths(const EditAuditTask& task, std::int64_t first, std::int64_t n) {
  MatrixD out(n, task.layout.n_bands() + 1);
  for (std::int64_t j = 0; j < n; ++j) {
    const BandEdit& edit = task.known_edits[static_cast<std::size_t>(first + j)];
    for (int b = 0; b < task.layout.n_bands(); ++b)
      out(j, b) = edit.band[static_cast<std::size_t>(b)];
    out(j, task.layout.n_bands()) = edit.unrotated;
  }
  return out;
}

/// Bounds of one block of keys, [n_queries, n_keys]. `change`: lengths of their edits.
MatrixD bounds_of(const EditAuditTask& task, const MatrixD& query_lengths,
                  const MatrixD& query_sizes, const MatrixD& stored, const MatrixD& edited,
                  const MatrixD& change) {
  MatrixD bound = query_lengths * (change * task.edit_factor).transpose();
  if (!task.rounding) return bound;
  bound *= (1.0 + task.query_slack) * (1.0 + 0x1p-40);
  const int n = task.layout.head_dim + 2;
  const double rounding = n * kUnit / (1.0 - n * kUnit);
  bound += rounding * query_sizes * (stored.cwiseAbs() + edited.cwiseAbs()).transpose();
  if (task.key_slack > 0.0) {
    const MatrixD both = lengths(task.layout, stored) + lengths(task.layout, edited);
    bound += 2.2 * task.key_slack * query_lengths * both.transpose();
  }
  return bound;
}

int distance_bucket(std::int64_t distance) {
  const auto size = static_cast<std::uint64_t>(std::abs(distance));
  return std::min(EditAuditFindings::kDistances - 1, static_cast<int>(std::bit_width(size)));
}

}  // namespace

void RatioSummary::add(double ratio) noexcept {
  ++n;
  sum += ratio;
  if (!(ratio <= 1.0)) ++violations;  // a NaN is one too
  if (!(ratio <= largest)) largest = ratio;
}

void RatioSummary::merge(const RatioSummary& other) noexcept {
  n += other.n;
  sum += other.sum;
  violations += other.violations;
  if (!(other.largest <= largest)) largest = other.largest;
}

void RatioHistogram::add(double ratio) noexcept {
  all.add(ratio);
  const bool inside = ratio <= 1.0;
  ++bins[inside ? std::min<std::size_t>(kBins - 1, static_cast<std::size_t>(ratio * kBins))
                : kBins];
}

void RatioHistogram::merge(const RatioHistogram& other) noexcept {
  all.merge(other.all);
  for (std::size_t i = 0; i < bins.size(); ++i) bins[i] += other.bins[i];
}

double RatioHistogram::quantile(double share) const noexcept {
  const double wanted = share * static_cast<double>(all.n);
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < bins.size(); ++i) {
    seen += bins[i];
    if (static_cast<double>(seen) >= wanted) return static_cast<double>(i + 1) / kBins;
  }
  return all.largest;
}

void EditAuditFindings::merge(const EditAuditFindings& other) noexcept {
  ratios.merge(other.ratios);
  for (std::size_t i = 0; i < by_distance.size(); ++i) by_distance[i].merge(other.by_distance[i]);
  for (std::size_t i = 0; i < by_band.size(); ++i) by_band[i].merge(other.by_band[i]);
}

void audit_edits(const EditAuditTask& task, EditAuditFindings& findings) {
  const int dim = task.layout.head_dim;
  const MapF queries = rows_of(task.queries, dim);
  const MatrixD query_lengths = lengths(task.layout, rows_of(task.lengths_of, dim).cast<double>());
  const MatrixD query_sizes = queries.cast<double>().cwiseAbs();
  const MapF stored = rows_of(task.stored, dim);
  const MapF edited = rows_of(task.edited, dim);
  const bool before = !task.unturned.empty();
  const MapF from = before ? rows_of(task.unturned, dim) : stored;
  const MapF to = before ? rows_of(task.unturned_edited, dim) : edited;
  for (std::int64_t first = 0; first < stored.rows(); first += kBlock) {
    const std::int64_t n = std::min(kBlock, stored.rows() - first);
    const MatrixF exact = queries * stored.middleRows(first, n).transpose();
    const MatrixF changed = queries * edited.middleRows(first, n).transpose();
    const MatrixD change = task.known_edits.empty()
                               ? lengths(task.layout, to.middleRows(first, n).cast<double>() -
                                                          from.middleRows(first, n).cast<double>())
                               : known_lengths(task, first, n);
    const MatrixD bound =
        bounds_of(task, query_lengths, query_sizes, stored.middleRows(first, n).cast<double>(),
                  edited.middleRows(first, n).cast<double>(), change);
    for (std::int64_t i = 0; i < queries.rows(); ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double moved =
            std::abs(static_cast<double>(changed(i, j)) - static_cast<double>(exact(i, j)));
        const double ratio = change_ratio(moved, bound(i, j));
        const auto key = static_cast<std::size_t>(first + j);
        findings.ratios.add(ratio);
        findings
            .by_distance[static_cast<std::size_t>(distance_bucket(
                task.query_positions[static_cast<std::size_t>(i)] - task.key_positions[key]))]
            .add(ratio);
        if (!task.edited_bands.empty())
          findings.by_band[static_cast<std::size_t>(task.edited_bands[key])].add(ratio);
      }
    }
  }
}

}  // namespace volvelle
