// Closed forms of the query side. n = Gamma u with |u| <= sqrt(n_embd), so q = W Gamma u + beta,
// and everything follows from G = n_embd (W Gamma) (W Gamma)^T:
//
//   (i)   sum_b Q_b a_b            Q_b = largest singular value of the band's two rows, + |beta_b|
//   (ii)  sqrt(a^T N a) + ...      N_bc = norm of the 2 x 2 block of G
//   (iii) sqrt(lambda_max G) |a| + ...
#include "bounds/edit_bound.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <string>

namespace volvelle {
namespace {

constexpr double kUp = 1.0 + 0x1p-20;  // stored bounds are rounded up
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Error invalid(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "edit bound: " + what};
}

Status check(const BandLayout& layout) {
  const bool pairs =
      layout.layout == RopeLayout::kAdjacentPairs || layout.layout == RopeLayout::kHalfSplit;
  if (pairs && layout.rotated_dims >= 2 && layout.rotated_dims % 2 == 0 &&
      layout.rotated_dims <= layout.head_dim)
    return {};
  return invalid("expected pairs of an even number of rotated dimensions up to the head's " +
                 std::to_string(layout.head_dim) + ", got " + std::to_string(layout.rotated_dims));
}

/// Largest singular value of [[p, q], [r, s]].
double norm_of_block(double p, double q, double r, double s) {
  return (std::hypot(p + s, q - r) + std::hypot(p - s, q + r)) / 2.0;
}

double largest_eigenvalue(const Matrix& gram) {
  if (gram.rows() == 0) return 0.0;
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(gram, Eigen::EigenvaluesOnly);
  return std::max(0.0, solver.eigenvalues()[gram.rows() - 1]);
}

/// W Gamma [head_dim, n_embd], with the mean taken off for a layer norm; W shift + bias.
struct Projection {
  Matrix map;
  Eigen::VectorXd bias;
};
Projection projection_of(const BandLayout& layout, const QueryWeights& weights) {
  using MapF =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  Projection made;
  made.map = MapF(weights.weight.data(), layout.head_dim, weights.n_embd).cast<double>();
  made.bias = Eigen::VectorXd::Zero(layout.head_dim);
  const auto vector = [](std::span<const float> values) -> Eigen::VectorXd {
    return Eigen::Map<const Eigen::VectorXf>(values.data(), std::ssize(values)).cast<double>();
  };
  if (!weights.shift.empty()) made.bias += made.map * vector(weights.shift);
  if (!weights.bias.empty()) made.bias += vector(weights.bias);
  if (!weights.gain.empty()) made.map *= vector(weights.gain).asDiagonal();
  if (weights.norm == InputNorm::kLayer) {
    const Eigen::VectorXd mean = made.map.rowwise().mean();
    made.map.colwise() -= mean;
  }
  return made;
}

}  // namespace

BandEdit edit_between(const BandLayout& layout, std::span<const float> stored,
                      std::span<const float> edited) {
  const auto difference = [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    return static_cast<double>(edited[at]) - static_cast<double>(stored[at]);
  };
  BandEdit edit;
  for (int b = 0; b < layout.n_bands(); ++b)
    edit.band.push_back(std::hypot(difference(layout.first(b)), difference(layout.second(b))));
  double rest = 0.0;
  for (int i = layout.rotated_dims; i < layout.head_dim; ++i) rest += difference(i) * difference(i);
  edit.unrotated = std::sqrt(rest);
  return edit;
}

BandEdit edit_of_shift(const BandLayout& layout, const BandFrequencies& bands,
                       std::span<const float> stored, std::int64_t by, double turn_error) {
  BandEdit edit;
  edit.band.assign(static_cast<std::size_t>(layout.n_bands()), 0.0);
  if (by == 0) return edit;
  const auto distance = static_cast<std::uint64_t>(std::abs(by));  // the sine is even in length
  // Turns are rounded to half of 2^-64 per position, angles and sines to doubles up to pi.
  const double angle_error = static_cast<double>(distance) * 0x1p-62 + 0x1p-49;
  const auto at = [&](int i) { return static_cast<double>(stored[static_cast<std::size_t>(i)]); };
  for (int b = 0; b < layout.n_bands(); ++b) {
    const auto band = static_cast<std::size_t>(b);
    const double moved = 2.0 * std::abs(std::sin(bands.angle(band, distance) / 2.0));
    const double length = std::hypot(at(layout.first(b)), at(layout.second(b)));
    edit.band[band] = (moved + angle_error + turn_error) * length * kUp;
  }
  return edit;
}

Result<QueryFactor> query_factor(const BandLayout& layout, const QueryWeights& weights) {
  if (const Status sound = check(layout); !sound.ok()) return sound.error();
  const auto n = static_cast<std::size_t>(weights.n_embd);
  const auto dim = static_cast<std::size_t>(layout.head_dim);
  const auto fits = [](std::span<const float> values, std::size_t size) {
    return values.empty() || values.size() == size;
  };
  if (n == 0 || weights.weight.size() != n * dim || !fits(weights.bias, dim) ||
      !fits(weights.gain, n) || !fits(weights.shift, n))
    return invalid("the sizes of weight, bias, gain and shift do not go together");
  const Projection projection = projection_of(layout, weights);
  const Matrix gram =
      static_cast<double>(weights.n_embd) * projection.map * projection.map.transpose();
  if (!gram.allFinite() || !projection.bias.allFinite())
    return Error{ErrorCode::kNumeric, "edit bound: the weights hold NaN or infinity"};
  const int m = layout.n_bands();
  QueryFactor factor;
  for (int b = 0; b < m; ++b) {
    const int x = layout.first(b), y = layout.second(b);
    factor.bias.push_back(std::hypot(projection.bias[x], projection.bias[y]));
    const double largest = norm_of_block(gram(x, x), gram(x, y), gram(y, x), gram(y, y));
    factor.band.push_back((std::sqrt(largest) + factor.bias.back()) * kUp);
    for (int c = 0; c < m; ++c) {
      const int u = layout.first(c), v = layout.second(c);
      factor.blocks.push_back(norm_of_block(gram(x, u), gram(x, v), gram(y, u), gram(y, v)) * kUp);
    }
  }
  const int d = layout.rotated_dims;
  factor.spectral = std::sqrt(largest_eigenvalue(gram.topLeftCorner(d, d))) * kUp;
  const int rest = layout.head_dim - d;
  factor.unrotated = (std::sqrt(largest_eigenvalue(gram.bottomRightCorner(rest, rest))) +
                      projection.bias.tail(rest).norm()) *
                     kUp;
  return factor;
}

Result<QueryFactor> normalised_query_factor(const BandLayout& layout, std::span<const float> gain) {
  if (const Status sound = check(layout); !sound.ok()) return sound.error();
  if (std::ssize(gain) != layout.head_dim) return invalid("expected a gain for each dimension");
  if (!std::all_of(gain.begin(), gain.end(), [](float g) { return std::isfinite(g); }))
    return Error{ErrorCode::kNumeric, "edit bound: a gain is NaN or infinite"};
  // q = gain * u, |u| <= sqrt(head_dim) over all bands: |s' - s| <= |u| sqrt(sum max gain_b^2
  // a_b^2).
  const double root = std::sqrt(static_cast<double>(layout.head_dim));
  const int m = layout.n_bands();
  QueryFactor factor;
  factor.blocks.assign(static_cast<std::size_t>(m) * static_cast<std::size_t>(m), 0.0);
  factor.bias.assign(static_cast<std::size_t>(m), 0.0);
  const auto size = [&](int i) {
    return std::abs(static_cast<double>(gain[static_cast<std::size_t>(i)]));
  };
  for (int b = 0; b < m; ++b) {
    const double largest = std::max(size(layout.first(b)), size(layout.second(b)));
    factor.band.push_back(root * largest * kUp);
    factor.spectral = std::max(factor.spectral, factor.band.back());
    // sqrt(a^T N a) with this diagonal is that.
    factor.blocks[static_cast<std::size_t>(b * m + b)] = root * root * largest * largest * kUp;
  }
  for (int i = layout.rotated_dims; i < layout.head_dim; ++i)
    factor.unrotated = std::max(factor.unrotated, root * size(i) * kUp);
  return factor;
}

void scale_queries(QueryFactor& factor, double rotated, double unrotated) {
  for (double& length : factor.band) length *= std::abs(rotated);
  for (double& norm : factor.blocks) norm *= rotated * rotated;
  for (double& length : factor.bias) length *= std::abs(rotated);
  factor.spectral *= std::abs(rotated);
  factor.unrotated *= std::abs(unrotated);
}

double edit_bound(const QueryFactor& factor, const BandEdit& edit) {
  double bands = 0.0, blocks = 0.0, square = 0.0, bias = 0.0;
  const std::size_t m = edit.band.size();
  for (std::size_t b = 0; b < m; ++b) {
    bands += factor.band[b] * edit.band[b];
    bias += factor.bias[b] * edit.band[b];
    square += edit.band[b] * edit.band[b];
    for (std::size_t c = 0; c < m; ++c)
      blocks += edit.band[b] * factor.blocks[b * m + c] * edit.band[c];
  }
  const double least =
      std::min({bands, std::sqrt(blocks) + bias, factor.spectral * std::sqrt(square) + bias});
  return (least + factor.unrotated * edit.unrotated) * kUp;
}

double edit_bound(const BandLayout& layout, std::span<const float> query, const BandEdit& edit) {
  const auto at = [&](int i) { return static_cast<double>(query[static_cast<std::size_t>(i)]); };
  double sum = 0.0;
  for (int b = 0; b < layout.n_bands(); ++b)
    sum += std::hypot(at(layout.first(b)), at(layout.second(b))) *
           edit.band[static_cast<std::size_t>(b)];
  double rest = 0.0;
  for (int i = layout.rotated_dims; i < layout.head_dim; ++i) rest += at(i) * at(i);
  return (sum + std::sqrt(rest) * edit.unrotated) * kUp;
}

}  // namespace volvelle
