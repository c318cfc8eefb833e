// Cost: for each map one product of all keys with it, and one of the codes with each query.
#include "index/codec_study.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/result_macros.hpp"
#include "index/head_bands.hpp"
#include "index/matrix.hpp"
#include "index/spectrum.hpp"
#include "volvelle/index/moments.hpp"
#include "volvelle/index/score_codec.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kWindow = 64;

/// Every step-th row behind the sinks, [n, dim].
std::vector<float> spread(const float* rows, std::int64_t n, int dim, std::int64_t n_wanted) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < n_wanted; ++i) {
    const std::int64_t row = kSinkTokens + (n - kSinkTokens) * i / n_wanted;
    out.insert(out.end(), rows + row * dim, rows + (row + 1) * dim);
  }
  return out;
}

void add_to(std::vector<double>& sum, const std::vector<double>& part) {
  sum.resize(part.size(), 0.0);
  for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

/// Queries as blocks before them see them: each of a spread of queries turned for one block.
void turn_for_blocks(std::vector<float>& queries, std::int64_t n, int dim, std::int64_t n_rows,
                     const BlockFrame& frame) {
  for (std::int64_t i = 0; i < n_rows; ++i) {
    const std::int64_t position = kSinkTokens + (n - kSinkTokens) * i / n_rows;
    const std::int64_t n_blocks = position / frame.block + 1;
    frame.turn_back(frame.middle(i * 7919 % n_blocks * frame.block), queries.data() + i * dim);
  }
}

/// A score's part that is the same for all rows of a block: q . (I - M) mean.
float block_constant(const StudyMap& map, const std::vector<double>& mean,
                     const Eigen::VectorXf& q) {
  const Eigen::Map<const MatrixD> encode(map.encode.data(), map.rank, map.dim);
  const Eigen::Map<const MatrixD> decode(map.decode.data(), map.dim, map.rank);
  const Eigen::Map<const Eigen::VectorXd> mu(mean.data(), map.dim);
  return static_cast<float>(q.cast<double>().dot(mu - decode * (encode * mu)));
}

/// The k largest of `scores`, ascending indices.
std::vector<std::int32_t> largest(const float* scores, std::size_t n, std::int64_t k) {
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min<std::ptrdiff_t>(k, std::ssize(order));
  std::nth_element(order.begin(), order.begin() + count, order.end(),
                   [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

/// Coded scores of codes in the frame before rotation, where each row would need a query of its
/// own: rows are decoded and turned to their positions instead, which is the same number.
MatrixF decoded_keys(const MatrixD& encode, const MatrixD& decode, MatrixF keys,
                     const BlockFrame& frame) {
  keys = (keys * encode.cast<float>().transpose()) * decode.cast<float>().transpose();
  for (std::int64_t t = 0; t < keys.rows(); ++t)
    frame.turn_back(-frame.middle(t), keys.row(t).data());
  return keys;
}

/// An orthogonal projection on the columns of `basis`, as a map.
StudyMap projection(const MatrixD& basis) {
  const Eigen::HouseholderQR<MatrixD> qr(basis);
  const MatrixD q = qr.householderQ() * MatrixD::Identity(basis.rows(), basis.cols());
  StudyMap map;
  map.dim = static_cast<int>(q.rows());
  map.rank = static_cast<int>(q.cols());
  map.decode = to_vector(q);
  map.encode = to_vector(q.transpose());
  return map;
}

/// The invariant subspace of the eigenvalues of largest modulus, as leading Schur vectors span it;
/// `rank` columns (a pair of complex ones that does not fit whole gives its real part).
MatrixD leading_invariant(const MatrixD& matrix, int rank) {
  const Eigen::EigenSolver<MatrixD> solver(matrix);
  std::vector<Eigen::Index> order(static_cast<std::size_t>(matrix.rows()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](Eigen::Index a, Eigen::Index b) {
    return std::abs(solver.eigenvalues()[a]) > std::abs(solver.eigenvalues()[b]);
  });
  MatrixD basis(matrix.rows(), rank);
  int n = 0;
  for (const Eigen::Index i : order) {
    if (n == rank) break;
    const double imaginary = solver.eigenvalues()[i].imag();
    if (imaginary < 0.0) continue;  // its partner stands for both
    basis.col(n++) = solver.eigenvectors().col(i).real();
    if (imaginary > 0.0 && n < rank) basis.col(n++) = solver.eigenvectors().col(i).imag();
  }
  return basis.leftCols(n);
}

/// Eigenvectors of Sk^(1/2) Sq Sk^(1/2), largest first, and Sk^(1/2) itself.
struct Joint {
  MatrixD root;
  MatrixD vectors;
};
Joint joint_of(const StudyMoments& moments) {
  const MatrixD sk = as_square(moments.key_covariance, moments.dim);
  const Eigen::SelfAdjointEigenSolver<MatrixD> keys(sk);
  const MatrixD root = keys.eigenvectors() *
                       keys.eigenvalues().cwiseMax(0.0).cwiseSqrt().asDiagonal() *
                       keys.eigenvectors().transpose();
  const Eigen::SelfAdjointEigenSolver<MatrixD> scores(
      MatrixD(root * as_square(moments.plain_query_moment, moments.dim) * root));
  return {root, scores.eigenvectors().rowwise().reverse()};
}

}  // namespace

std::string_view to_string(StudyCodec codec) noexcept {
  switch (codec) {
    case StudyCodec::kBalanced:
      return "saki";
    case StudyCodec::kPlain:
      return "saki_plain";
    case StudyCodec::kPrincipal:
      return "pca";
    case StudyCodec::kDimensions:
      return "dims";
    case StudyCodec::kWeightedSpan:
      return "weighted_span";
    case StudyCodec::kRawSpan:
      return "raw_span";
    case StudyCodec::kBlocks:
      return "saki_blocks";
    case StudyCodec::kWeights:
      return "weight_svd";
    case StudyCodec::kInvariant:
      return "schur";
  }
  return "";
}

StudyMoments study_moments(const HeadSample& sample, std::int64_t n_rows, bool shrink_them,
                           const BlockFrame& frame) {
  StudyMoments result;
  const int dim = result.dim = sample.dim;
  std::vector<float> keys = spread(sample.keys.data(), sample.n, dim, n_rows);
  for (std::int64_t i = 0; frame.block > 0 && i < n_rows; ++i)
    frame.turn_back(frame.middle(kSinkTokens + (sample.n - kSinkTokens) * i / n_rows),
                    keys.data() + i * dim);
  Moments key_moments(dim);
  key_moments.add(keys.data(), n_rows, dim);
  result.key_mean = key_moments.mean();
  result.key_covariance = key_moments.covariance();
  result.key_spikes = count_spikes(keys.data(), n_rows, dim, result.key_covariance);
  double query_inflation = 1.0;
  for (int g = 0; g < sample.group; ++g) {
    std::vector<float> queries = spread(sample.query(g, 0), sample.n, dim, n_rows);
    if (frame.block > 0) turn_for_blocks(queries, sample.n, dim, n_rows, frame);
    add_to(result.query_moment,
           normalised_query_moment(queries.data(), n_rows, dim, result.key_covariance));
    Moments plain(dim);
    plain.add(queries.data(), n_rows, dim);
    result.head_query_moments.push_back(plain.second_moment());
    add_to(result.plain_query_moment, result.head_query_moments.back());
    query_inflation = std::max(query_inflation, inflation_of(queries.data(), n_rows, dim, dim));
  }
  if (!shrink_them) return result;
  const auto n = static_cast<double>(n_rows);
  shrink(
      result.key_covariance,
      shrinkage_intensity(result.key_covariance, n / inflation_of(keys.data(), n_rows, dim, dim)));
  for (std::vector<double>* moment : {&result.query_moment, &result.plain_query_moment})
    shrink(*moment, shrinkage_intensity(*moment, n / query_inflation));
  return result;
}

StudyMoments weight_moments(const HeadWeights& weights) {
  StudyMoments result;
  const int dim = result.dim = weights.dim;
  const MatrixD key =
      Eigen::Map<const MatrixF>(weights.key.data(), dim, weights.n_embd).cast<double>();
  result.key_mean.assign(static_cast<std::size_t>(dim), 0.0);
  result.key_covariance = to_vector(key * key.transpose());
  for (int g = 0; g < weights.group; ++g) {
    const float* const from =
        weights.query.data() + static_cast<std::ptrdiff_t>(g) * dim * weights.n_embd;
    const MatrixD query = Eigen::Map<const MatrixF>(from, dim, weights.n_embd).cast<double>();
    result.head_query_moments.push_back(to_vector(query * query.transpose()));
    add_to(result.plain_query_moment, result.head_query_moments.back());
    add_to(result.key_query, to_vector(key * query.transpose()));
  }
  result.query_moment = result.plain_query_moment;
  return result;
}

Result<StudyMap> make_study_map(StudyCodec codec, const StudyMoments& moments, int rank) {
  if (codec == StudyCodec::kWeightedSpan || codec == StudyCodec::kRawSpan) {
    const Joint joint = joint_of(moments);
    const MatrixD leading = joint.vectors.leftCols(rank);
    return projection(codec == StudyCodec::kRawSpan ? leading : MatrixD(joint.root * leading));
  }
  if (codec == StudyCodec::kInvariant)
    return projection(leading_invariant(as_square(moments.key_query, moments.dim), rank));
  const CodecKind kind = codec == StudyCodec::kPrincipal    ? CodecKind::kPrincipal
                         : codec == StudyCodec::kDimensions ? CodecKind::kDimensions
                                                            : CodecKind::kBalanced;
  const std::vector<double>& queries =
      codec == StudyCodec::kBalanced || codec == StudyCodec::kBlocks ? moments.query_moment
                                                                     : moments.plain_query_moment;
  VOLVELLE_ASSIGN_OR_RETURN(ScoreCodec made,
                            make_score_codec(kind, queries, moments.key_covariance, rank));
  return StudyMap{moments.dim, rank, std::move(made.encode), std::move(made.decode)};
}

std::vector<float> through_map(const StudyMap& map, const StudyMoments& moments,
                               std::span<const float> rows) {
  const Eigen::Map<const MatrixD> encode(map.encode.data(), map.rank, map.dim);
  const Eigen::Map<const MatrixD> decode(map.decode.data(), map.dim, map.rank);
  const Eigen::Map<const Eigen::RowVectorXd> mean(moments.key_mean.data(), map.dim);
  const MatrixF keys = Eigen::Map<const MatrixF>(rows.data(), std::ssize(rows) / map.dim, map.dim);
  const MatrixD codes = (keys.cast<double>().rowwise() - mean) * encode.transpose();
  const MatrixF kept = ((codes * decode.transpose()).rowwise() + mean).cast<float>();
  return {kept.data(), kept.data() + kept.size()};
}

double predicted_score_error(const StudyMap& map, const StudyMoments& moments) {
  const Eigen::Map<const MatrixD> encode(map.encode.data(), map.rank, map.dim);
  const Eigen::Map<const MatrixD> decode(map.decode.data(), map.dim, map.rank);
  const std::vector<double> projector = to_vector(decode * encode);
  return score_error(projector, moments.plain_query_moment, moments.key_covariance) /
         score_power(moments.plain_query_moment, moments.key_covariance);
}

std::vector<StudyTruth> study_truths(const HeadSample& sample, std::int64_t n_queries,
                                     std::int64_t k) {
  std::vector<StudyTruth> truths;
  const Eigen::Map<const MatrixF> keys(sample.keys.data(), sample.n, sample.dim);
  for (std::int64_t i = 0; i < n_queries; ++i) {
    const std::int64_t late = std::min<std::int64_t>(512, sample.n / 4);
    const std::int64_t position = sample.n - late + (late - 1) * (i + 1) / n_queries;
    for (int g = 0; g < sample.group; ++g) {
      const Eigen::Map<const Eigen::VectorXf> q(sample.query(g, position), sample.dim);
      const Eigen::VectorXf scores =
          keys.middleRows(kSinkTokens, position - kWindow - kSinkTokens) * q;
      StudyTruth truth{position, g, {scores.data(), scores.data() + scores.size()}, {}};
      truth.best = largest(truth.scores.data(), truth.scores.size(), k);
      truths.push_back(std::move(truth));
    }
  }
  return truths;
}

StudyScore score_map(const StudyMap& map, const StudyMoments& moments, const HeadSample& sample,
                     const std::vector<StudyTruth>& truths, const BlockFrame& frame) {
  const Eigen::Map<const MatrixD> encode(map.encode.data(), map.rank, map.dim);
  const Eigen::Map<const MatrixD> decode(map.decode.data(), map.dim, map.rank);
  MatrixF keys = Eigen::Map<const MatrixF>(sample.keys.data(), sample.n, sample.dim);
  for (std::int64_t t = 0; frame.block > 0 && t < sample.n; ++t)
    frame.turn_back(frame.middle(t), keys.row(t).data());
  const bool by_row = frame.block == 1;  // the mean of weights' moments is 0
  const MatrixF codes =
      by_row
          ? decoded_keys(encode, decode, keys, frame)
          : MatrixF(keys * encode.cast<float>().transpose());  // the mean shifts all scores alike
  const auto group = static_cast<std::size_t>(sample.group);
  StudyScore score{std::vector<double>(group, 0.0), std::vector<double>(group, 0.0), {}};
  std::vector<double> n(group, 0.0), error(group, 0.0), power(group, 0.0);
  for (const StudyTruth& truth : truths) {
    const auto g = static_cast<std::size_t>(truth.g);
    const Eigen::Map<const Eigen::VectorXf> q(sample.query(truth.g, truth.position), sample.dim);
    const std::int64_t n_rows = std::ssize(truth.scores);
    Eigen::VectorXf coded(n_rows);
    const std::int64_t block = frame.block > 0 ? frame.block : sample.n;
    if (by_row) coded = codes.middleRows(kSinkTokens, n_rows) * q;
    for (std::int64_t first = kSinkTokens; !by_row && first < kSinkTokens + n_rows;) {
      const std::int64_t end = std::min(first / block * block + block, kSinkTokens + n_rows);
      Eigen::VectorXf turned = q;
      if (frame.block > 0) frame.turn_back(frame.middle(first), turned.data());
      const Eigen::VectorXf a = decode.cast<float>().transpose() * turned;
      coded.segment(first - kSinkTokens, end - first) =
          (codes.middleRows(first, end - first) * a).array() +
          block_constant(map, moments.key_mean, turned);
      first = end;
    }
    const auto found = largest(coded.data(), truth.scores.size(), std::ssize(truth.best));
    std::vector<std::int32_t> both;
    std::set_intersection(found.begin(), found.end(), truth.best.begin(), truth.best.end(),
                          std::back_inserter(both));
    score.recall[g] += static_cast<double>(both.size()) / static_cast<double>(truth.best.size());
    n[g] += 1.0;
    const Eigen::Map<const Eigen::VectorXf> exact(truth.scores.data(), std::ssize(truth.scores));
    const Eigen::ArrayXd s = exact.cast<double>().array();
    const Eigen::ArrayXd e = s - coded.cast<double>().array();
    error[g] += (e - e.mean()).square().sum();
    power[g] += (s - s.mean()).square().sum();
  }
  const MatrixD projector = decode * encode;
  for (std::size_t g = 0; g < group; ++g) {
    score.recall[g] /= std::max(n[g], 1.0);
    score.measured[g] = power[g] > 0.0 ? error[g] / power[g] : 0.0;
    const std::vector<double>& sq = moments.head_query_moments[g];
    score.predicted.push_back(score_error(to_vector(projector), sq, moments.key_covariance) /
                              score_power(sq, moments.key_covariance));
  }
  return score;
}

}  // namespace volvelle
