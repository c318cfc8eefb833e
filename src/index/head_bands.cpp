// Re(q conj(k) e^{i theta D}) is the dot product of q turned by D with k, so statistics at a
// distance are those of plain dot products.
#include "index/head_bands.hpp"

#include <algorithm>
#include <cmath>

#include "index/matrix.hpp"

namespace volvelle {
namespace {

using Rows = Eigen::Map<const MatrixD>;
using Vector = Eigen::VectorXd;
using RowVector = Eigen::RowVectorXd;

Rows all_rows(const UnturnedRows& rows) { return {rows.rows.data(), rows.n, rows.dim}; }

RowVector mean_of(const UnturnedRows& rows) {
  return Eigen::Map<const RowVector>(rows.mean.data(), rows.dim);
}

/// Rows turned by a distance.
MatrixD turned(const MatrixD& rows, const BandFrequencies& bands, std::int64_t distance) {
  const auto m = static_cast<Eigen::Index>(bands.size());
  RowVector cosine(m), sine(m);
  for (Eigen::Index b = 0; b < m; ++b) {
    const double angle =
        bands.angle(static_cast<std::size_t>(b), static_cast<std::uint64_t>(distance));
    cosine[b] = std::cos(angle);
    sine[b] = std::sin(angle);
  }
  MatrixD out = rows;
  for (Eigen::Index t = 0; t < rows.rows(); ++t) {
    const auto x = rows.row(t).head(m).array();
    const auto y = rows.row(t).segment(m, m).array();
    out.row(t).head(m) = x * cosine.array() - y * sine.array();
    out.row(t).segment(m, m) = x * sine.array() + y * cosine.array();
  }
  return out;
}

/// Mean over rows of q_b conj(k_b); dimensions that do not turn as they are.
MeanBands mean_products(const MatrixD& q, const MatrixD& k, std::size_t n_bands, double scale) {
  const auto m = static_cast<Eigen::Index>(n_bands);
  const double share = scale / static_cast<double>(std::max<Eigen::Index>(1, q.rows()));
  const auto product = [&](Eigen::Index of_q, Eigen::Index of_k) -> RowVector {
    return q.middleCols(of_q, m).cwiseProduct(k.middleCols(of_k, m)).colwise().sum() * share;
  };
  const RowVector real = product(0, 0) + product(m, m);
  const RowVector imaginary = product(m, 0) - product(0, m);
  MeanBands bands;
  for (Eigen::Index b = 0; b < m; ++b) {
    bands.amplitude.push_back(std::hypot(real[b], imaginary[b]));
    bands.phase.push_back(std::atan2(imaginary[b], real[b]));
  }
  const Eigen::Index rest = q.cols() - 2 * m;
  bands.constant = q.rightCols(rest).cwiseProduct(k.rightCols(rest)).sum() * share;
  return bands;
}

double variance(const Vector& values) {
  return values.size() == 0 ? 0.0 : (values.array() - values.mean()).square().mean();
}

Vector dots(const MatrixD& a, const MatrixD& b) { return a.cwiseProduct(b).rowwise().sum(); }

/// Queries that have a target, and the targets' keys.
struct Pairs {
  std::vector<Eigen::Index> queries, keys;
};
Pairs pairs_of(std::span<const std::int64_t> targets) {
  Pairs pairs;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < kSinkTokens) continue;
    pairs.queries.push_back(static_cast<Eigen::Index>(t));
    pairs.keys.push_back(targets[t]);
  }
  return pairs;
}

}  // namespace

BandTurns band_turns(const BandFrequencies& bands, std::int64_t n) {
  BandTurns turns{n, {}, {}};
  turns.cosine.reserve(static_cast<std::size_t>(n) * bands.size());
  turns.sine.reserve(static_cast<std::size_t>(n) * bands.size());
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::size_t b = 0; b < bands.size(); ++b) {
      const double angle = bands.angle(b, static_cast<std::uint64_t>(t));
      turns.cosine.push_back(std::cos(angle));
      turns.sine.push_back(std::sin(angle));
    }
  }
  return turns;
}

UnturnedRows unturned_rows(const float* rows, const BandLayout& layout, const BandTurns& turns) {
  const int m = layout.n_bands();
  UnturnedRows out{turns.n, layout.head_dim, m, {}, {}};
  out.rows.resize(static_cast<std::size_t>(out.n * out.dim));
  for (std::int64_t t = 0; t < out.n; ++t) {
    const float* const from = rows + t * out.dim;
    double* const to = out.rows.data() + t * out.dim;
    const double* const cosine = turns.cosine.data() + t * m;
    const double* const sine = turns.sine.data() + t * m;
    for (int b = 0; b < m; ++b) {
      const auto x = static_cast<double>(from[layout.first(b)]);
      const auto y = static_cast<double>(from[layout.second(b)]);
      to[b] = x * cosine[b] + y * sine[b];
      to[b + m] = y * cosine[b] - x * sine[b];
    }
    for (int i = layout.rotated_dims; i < out.dim; ++i) to[i] = static_cast<double>(from[i]);
  }
  const std::int64_t n = std::max<std::int64_t>(0, out.n - kSinkTokens);
  RowVector mean = RowVector::Zero(out.dim);
  if (n > 0) mean = all_rows(out).bottomRows(n).colwise().mean();
  out.mean.assign(mean.data(), mean.data() + mean.size());
  return out;
}

MeanBands background_bands(const UnturnedRows& queries, const UnturnedRows& keys, double scale) {
  return mean_products(mean_of(queries), mean_of(keys), static_cast<std::size_t>(keys.n_bands),
                       scale);
}

double TargetLogits::z() const noexcept {
  const double deviation = std::hypot(sigma, target_sigma);
  const double above = matched - background;
  return above == 0.0 ? 0.0 : above / deviation;  // infinite where nothing deviates
}

MatchedStudy matched_study(const UnturnedRows& queries, const UnturnedRows& keys, double scale,
                           std::span<const std::int64_t> targets, const BandFrequencies& bands,
                           std::span<const std::int64_t> distances) {
  MatchedStudy study;
  const Pairs pairs = pairs_of(targets);
  study.n_pairs = std::ssize(pairs.queries);
  if (study.n_pairs == 0) return study;
  const RowVector mean_key = mean_of(keys);
  const MatrixD others = all_rows(keys).rowwise() - mean_key;
  const MatrixD found = others(pairs.keys, Eigen::all);
  const MatrixD askers = all_rows(queries)(pairs.queries, Eigen::all);
  study.matched =
      mean_products(askers, all_rows(keys)(pairs.keys, Eigen::all), bands.size(), scale);
  study.excess = mean_products(askers, found, bands.size(), scale);
  for (const std::int64_t distance : distances) {
    const MatrixD asked = turned(all_rows(queries), bands, distance);
    const MatrixD of_pairs = asked(pairs.queries, Eigen::all);
    const Vector target = dots(of_pairs, found) * scale;
    const std::int64_t n = std::max<std::int64_t>(0, keys.n - kSinkTokens - distance);
    const Vector other = dots(asked.bottomRows(n), others.middleRows(kSinkTokens, n)) * scale;
    TargetLogits at{distance};
    at.background = of_pairs.colwise().mean().dot(mean_key) * scale;
    at.matched = at.background + target.mean();
    at.sigma = std::sqrt(variance(other));
    at.target_sigma = std::sqrt(variance(target));
    study.at.push_back(at);
  }
  return study;
}

double mean_deviation(const MatchedStudy& study) {
  double sum = 0.0;
  for (const TargetLogits& at : study.at)
    sum += at.sigma * at.sigma + at.target_sigma * at.target_sigma;
  return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(1, study.at.size())));
}

}  // namespace volvelle
