// Score codes on synthetic heads, whose keys and queries are drawn with known moments: which frame
// of rotary positions codes are best made in, errors against their prediction, and what bytes and
// shifts of the mean do to the order of rows (SAKI, arXiv 2608.03228).
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "index/codec_study.hpp"
#include "index/matrix.hpp"
#include "index/rotation_average.hpp"
#include "volvelle/index/moments.hpp"
#include "volvelle/index/row_code.hpp"

namespace volvelle {
namespace {

constexpr int kDim = 128;
constexpr std::int64_t kTokens = 4096;
constexpr int kTop = 64;

BlockFrame rotary_frame() {
  RopeConfig rope;
  rope.layout = RopeLayout::kHalfSplit;
  rope.rotated_dims = kDim;
  rope.freq_base = 500000.0;
  return make_block_frame(rope).value();
}

/// Rows [n, dim] turned from position 0 to their own, or to `middle` of their blocks; back with
/// sign -1.
std::vector<float> turned(std::vector<float> rows, const BlockFrame& frame, int sign, bool middle) {
  const std::int64_t n = std::ssize(rows) / kDim;
  for (std::int64_t t = 0; t < n; ++t)
    frame.turn_back(-sign * (middle ? frame.middle(t) : t), rows.data() + t * kDim);
  return rows;
}

/// What keys and queries of a head are drawn from: 40 directions, the same in part, and noise;
/// more of it in slow bands, and a mean in these; neighbours in the text are correlated.
class RotaryHead {
 public:
  explicit RotaryHead(std::uint32_t seed) : random_(seed) {
    keys_ = draw_matrix(kDirections, kDim) / std::sqrt(kDirections);
    queries_ = 0.6 * keys_ + 0.8 * draw_matrix(kDirections, kDim) / std::sqrt(kDirections);
    mean_ = Eigen::RowVectorXd::Zero(kDim);
    amplitude_ = Eigen::RowVectorXd::Zero(kDim);
    std::uniform_real_distribution<double> phase(0.0, 6.283185307179586);
    constexpr int kBands = kDim / 2;
    for (int b = 0; b < kBands; ++b) {
      const double size = 0.4 + 1.6 * std::pow(b / (kBands - 1.0), 2);
      const double angle = phase(random_);
      amplitude_[b] = amplitude_[b + kBands] = size;
      if (b <= 44) continue;
      mean_[b] = 2 * size * std::cos(angle);
      mean_[b + kBands] = 2 * size * std::sin(angle);
    }
  }
  /// Before rotation.
  HeadSample draw() {
    HeadSample sample;
    sample.dim = kDim;
    sample.group = 1;
    sample.n = kTokens;
    sample.keys = rows(keys_, mean_);
    sample.queries = rows(queries_, 0.8 * mean_);
    return sample;
  }

 private:
  static constexpr int kDirections = 40;
  MatrixD draw_matrix(Eigen::Index n, Eigen::Index dim) {
    std::normal_distribution<double> normal;
    MatrixD out(n, dim);
    for (double& x : out.reshaped()) x = normal(random_);
    return out;
  }
  std::vector<float> rows(const MatrixD& directions, const Eigen::RowVectorXd& mean) {
    MatrixD z = draw_matrix(kTokens, kDirections);
    for (Eigen::Index t = 1; t < kTokens; ++t) z.row(t) = 0.6 * z.row(t - 1) + 0.8 * z.row(t);
    const MatrixD x = z * directions + 0.35 * draw_matrix(kTokens, kDim);
    const MatrixF out =
        ((x.array().rowwise() * amplitude_.array()).matrix().rowwise() + mean).cast<float>();
    return {out.data(), out.data() + out.size()};
  }

  std::mt19937 random_;
  MatrixD keys_, queries_;
  Eigen::RowVectorXd mean_, amplitude_;
};

HeadSample rotated(HeadSample sample, const BlockFrame& frame) {
  sample.keys = turned(std::move(sample.keys), frame, 1, false);
  sample.queries = turned(std::move(sample.queries), frame, 1, false);
  return sample;
}

/// Indices of the kTop largest, ascending; of equal ones the later.
std::vector<std::int32_t> top_of(const Eigen::VectorXd& scores) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(scores.size()));
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + kTop, order.end(), [&](auto a, auto b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a > b;
  });
  order.resize(kTop);
  std::sort(order.begin(), order.end());
  return order;
}

double overlap(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  std::vector<std::int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(b.size());
}

/// Share of the truly best rows among those that other keys (rotated) would choose.
double recall_of(const std::vector<float>& keys, const HeadSample& sample,
                 const std::vector<StudyTruth>& truths) {
  const Eigen::Map<const MatrixF> rows(keys.data(), kTokens, kDim);
  double recall = 0.0;
  for (const StudyTruth& truth : truths) {
    const Eigen::Map<const Eigen::VectorXf> q(sample.query(0, truth.position), kDim);
    std::vector<std::int32_t> found =
        top_of((rows.middleRows(4, std::ssize(truth.scores)) * q).cast<double>());
    recall += overlap(found, truth.best) / static_cast<double>(truths.size());
  }
  return recall;
}

/// Mean squared score error of other keys over all searched rows, scores as they are.
double squared_error(const std::vector<float>& keys, const HeadSample& sample,
                     const std::vector<StudyTruth>& truths) {
  const Eigen::Map<const MatrixF> rows(keys.data(), kTokens, kDim);
  double sum = 0.0, n = 0.0;
  for (const StudyTruth& truth : truths) {
    const Eigen::Map<const Eigen::VectorXf> q(sample.query(0, truth.position), kDim);
    const Eigen::Map<const Eigen::VectorXf> exact(truth.scores.data(), std::ssize(truth.scores));
    sum += (rows.middleRows(4, exact.size()) * q - exact).cast<double>().squaredNorm();
    n += static_cast<double>(exact.size());
  }
  return sum / n;
}

constexpr std::int64_t kRows = kTokens - 4;

std::vector<double> averaged(const std::vector<double>& moment, PositionRange distances) {
  const BlockFrame frame = rotary_frame();
  const std::vector<double> theta(frame.angles.begin(), frame.angles.end());
  return rotation_average(moment, theta, PairLayout::kHalves, distances);
}

StudyMap map_of(StudyCodec codec, const StudyMoments& moments, int rank) {
  return make_study_map(codec, moments, rank).value();
}

/// Codes of one head in different frames, made of one text and used for another.
class FrameStudy {
 public:
  FrameStudy(std::uint32_t seed, int rank) : rank_(rank) {
    RotaryHead head(seed);
    made_of_ = head.draw();
    read_ = head.draw();
    third_ = head.draw();
    made_of_rotated_ = rotated(made_of_, frame_);
    read_rotated_ = rotated(read_, frame_);
    truths_ = study_truths(read_rotated_, 128, kTop);
    study_before();
    study_after();
    study_blocks();
  }
  std::map<std::string, double> recall;
  // Of codes before rotation with the averaged query moment: mean squared errors of scores.
  double measured = 0.0, predicted = 0.0, predicted_plain = 0.0;

 private:
  void study_before() {
    StudyMoments moments = study_moments(made_of_, kRows, false);
    std::vector<float> kept;
    const auto recall_with = [&](StudyCodec codec) {
      kept =
          turned(through_map(map_of(codec, moments, rank_), moments, read_.keys), frame_, 1, false);
      return recall_of(kept, read_rotated_, truths_);
    };
    recall["pre pca"] = recall_with(StudyCodec::kPrincipal);
    recall["pre plain"] = recall_with(StudyCodec::kPlain);
    moments.plain_query_moment = averaged(moments.plain_query_moment, {0, kTokens});
    recall["pre averaged"] = recall_with(StudyCodec::kPlain);
    measured = squared_error(kept, read_rotated_, truths_);
    // From moments that the code was not fitted to, at the distances of the late queries.
    StudyMoments other = study_moments(third_, kRows, false);
    const StudyMap map = map_of(StudyCodec::kPlain, moments, rank_);
    const auto error_from = [&](const StudyMoments& of) {
      return predicted_score_error(map, of) * score_power(of.plain_query_moment, of.key_covariance);
    };
    predicted_plain = error_from(other);
    other.plain_query_moment = averaged(other.plain_query_moment, {64, kTokens - 64 - 256});
    predicted = error_from(other);
  }
  void study_after() {
    const StudyMoments moments = study_moments(made_of_rotated_, kRows, false);
    const StudyMap map = map_of(StudyCodec::kPlain, moments, rank_);
    recall["post"] =
        recall_of(through_map(map, moments, read_rotated_.keys), read_rotated_, truths_);
    const StudyMap pca = map_of(StudyCodec::kPrincipal, moments, rank_);
    recall["post pca"] =
        recall_of(through_map(pca, moments, read_rotated_.keys), read_rotated_, truths_);
    // The study's own way to score; floats may swap a few rows.
    EXPECT_NEAR(score_map(map, moments, read_rotated_, truths_).recall[0], recall["post"], 0.003);
  }
  void study_blocks() {
    const StudyMoments moments = study_moments(made_of_rotated_, kRows, false, frame_);
    const StudyMap map = map_of(StudyCodec::kPlain, moments, rank_);
    const std::vector<float> in_blocks = turned(read_rotated_.keys, frame_, -1, true);
    recall["block"] = recall_of(turned(through_map(map, moments, in_blocks), frame_, 1, true),
                                read_rotated_, truths_);
    // The study turns queries instead of keys.
    EXPECT_NEAR(score_map(map, moments, read_rotated_, truths_, frame_).recall[0], recall["block"],
                0.003);
  }

  const BlockFrame frame_ = rotary_frame();
  int rank_;
  HeadSample made_of_, read_, third_;  // before rotation
  HeadSample made_of_rotated_, read_rotated_;
  std::vector<StudyTruth> truths_;
};

/// Recalls of an independent program (NumPy) on six such heads: mean and standard deviation.
struct Reference {
  int rank;
  std::string frame;
  double mean, deviation;
};
const std::vector<Reference> kReference = {
    {16, "pre averaged", .754, .017}, {16, "block", .750, .017},   {16, "post", .733, .018},
    {16, "post pca", .595, .051},     {16, "pre pca", .591, .062}, {16, "pre plain", .739, .019},
    {32, "pre averaged", .896, .007}, {32, "block", .883, .008},   {32, "post", .846, .010},
    {32, "post pca", .777, .022},     {32, "pre pca", .804, .022}, {32, "pre plain", .876, .009}};

TEST(SyntheticHeads, OrderOfTheFramesThatCodesAreMadeIn) {
  for (const int rank : {16, 32}) {
    SCOPED_TRACE(rank);
    constexpr int kHeads = 6;
    std::map<std::string, double> mean;
    double measured = 0.0, predicted = 0.0, predicted_plain = 0.0;
    for (std::uint32_t seed = 0; seed < kHeads; ++seed) {
      const FrameStudy head(seed, rank);
      for (const auto& [frame, recall] : head.recall) mean[frame] += recall / kHeads;
      measured += head.measured;
      predicted += head.predicted;
      predicted_plain += head.predicted_plain;
    }
    EXPECT_GE(mean["pre averaged"], mean["block"]);
    EXPECT_GE(mean["block"], mean["post"]);
    EXPECT_GT(mean["post"], mean["post pca"]);
    EXPECT_GT(mean["post"], mean["pre pca"]);
    EXPECT_GT(mean["pre averaged"], mean["pre plain"]);
    for (const Reference& p : kReference) {
      if (p.rank != rank) continue;
      // Three standard errors of the difference of two means.
      EXPECT_NEAR(mean[p.frame], p.mean, 3 * std::sqrt(2.0 / 6) * p.deviation) << p.frame;
    }
    EXPECT_NEAR(measured, predicted, 0.05 * predicted);
    EXPECT_GT(std::abs(measured - predicted_plain), 0.2 * predicted);  // without the average
  }
}

MatrixD random_rows(std::mt19937& random, Eigen::Index n, const MatrixD& directions) {
  std::normal_distribution<double> normal;
  MatrixD z(n, directions.rows());
  for (double& x : z.reshaped()) x = normal(random);
  return z * directions;
}

/// V diag(i^-decay) V^T of a random rotation V: a square root of a moment.
MatrixD power_law(std::mt19937& random, double decay) {
  std::normal_distribution<double> normal;
  MatrixD a(kDim, kDim);
  for (double& x : a.reshaped()) x = normal(random);
  const MatrixD v = Eigen::HouseholderQR<MatrixD>(a).householderQ();
  Eigen::VectorXd root(kDim);
  for (int i = 0; i < kDim; ++i) root[i] = std::pow(i + 1.0, -decay / 2);
  return v * root.asDiagonal() * v.transpose();
}

// Over all pairs of the rows that the moments are of, the mean squared error is the trace formula,
// so no head may have less error with PCA.
TEST(SyntheticHeads, InSampleErrorsAreWhatMomentsSayAndNeverMoreThanPca) {
  std::mt19937 random(3);
  for (int head = 0; head < 24; ++head) {
    const double decays[] = {0.3, 0.8, 1.5};
    const MatrixD q = random_rows(random, 300, power_law(random, decays[head % 3]));
    MatrixD k = random_rows(random, 400, power_law(random, decays[head / 3 % 3]));
    const Eigen::RowVectorXd mean = k.colwise().mean();
    k.rowwise() -= mean;
    const std::vector<double> sq = to_vector(q.transpose() * q / 300);
    const std::vector<double> sk = to_vector(k.transpose() * k / 400);
    for (const int rank : {16, 32, 64}) {
      double errors[2];
      for (const CodecKind kind : {CodecKind::kBalanced, CodecKind::kPrincipal}) {
        const auto m = make_score_codec(kind, sq, sk, rank).value().projector();
        const MatrixD rest = MatrixD::Identity(kDim, kDim) - MatrixD(as_square(m, kDim));
        const double measured = (q * rest * k.transpose()).squaredNorm() / (300.0 * 400.0);
        const double predicted = score_error(m, sq, sk);
        EXPECT_NEAR(measured, predicted, 1e-10 * score_power(sq, sk));
        errors[kind == CodecKind::kBalanced ? 0 : 1] = measured;
      }
      EXPECT_LT(errors[0], errors[1]);
    }
  }
}

/// Keys of a power law with their code of 32 coordinates, and queries.
struct CodedHead {
  MatrixF keys;
  MatrixD queries;
  ScoreCodec codec;
  std::vector<double> mean;

  explicit CodedHead(std::uint32_t seed) {
    std::mt19937 random(seed);
    const MatrixD root_q = power_law(random, 0.8), root_k = power_law(random, 0.8);
    keys = random_rows(random, kTokens, root_k).cast<float>();
    queries = random_rows(random, 128, root_q);
    Moments moments(kDim);
    moments.add(keys.data(), kTokens, kDim);
    mean = moments.mean();
    codec =
        make_score_codec(CodecKind::kBalanced, to_vector(root_q * root_q), moments.covariance(), 32)
            .value();
  }
  /// Codes in floats, [n, 32], of keys without `center`.
  MatrixD float_codes(const std::vector<double>& center) const {
    const Eigen::Map<const MatrixD> encode(codec.encode.data(), codec.rank, kDim);
    const Eigen::Map<const Eigen::RowVectorXd> mu(center.data(), kDim);
    return (keys.cast<double>().rowwise() - mu) * encode.transpose();
  }
  /// The same as bytes stand for them.
  MatrixD byte_codes() const {
    const RowCode code = make_key_code(codec, mean, uniform_widths(32, 8, kKeyCodeUnit));
    MatrixD codes(kTokens, 32);
    CodeScratch scratch;
    std::vector<std::byte> levels(code.widths.tile_bytes() + 64);
    std::vector<std::uint16_t> scales(kCodeTile);
    const CodedRows tile{.levels = levels.data(), .scales = scales.data()};
    for (std::int64_t first = 0; first < kTokens; first += kCodeTile) {
      encode_tile(code, CodeSide::kKeys, keys.data() + first * kDim, tile, scratch);
      for (int t = 0; t < kCodeTile; ++t) {
        const std::vector<float> x = decode_row(code, CodeSide::kKeys, tile, t);
        for (int i = 0; i < 32; ++i)
          codes(first + t, i) = static_cast<double>(x[static_cast<std::size_t>(i)]);
      }
    }
    return codes;
  }
  MatrixD query_codes() const {
    return queries * Eigen::Map<const MatrixD>(codec.decode.data(), kDim, codec.rank);
  }
};

// The independent program found .989.
TEST(SyntheticHeads, BytesChooseTheRowsThatFloatsDo) {
  const CodedHead head(5);
  const MatrixD exact = head.float_codes(head.mean), coded = head.byte_codes();
  const MatrixD queries = head.query_codes();
  double mean = 0.0;
  for (Eigen::Index i = 0; i < queries.rows(); ++i) {
    mean += overlap(top_of(coded * queries.row(i).transpose()),
                    top_of(exact * queries.row(i).transpose())) /
            static_cast<double>(queries.rows());
  }
  EXPECT_GE(mean, 0.98);
  EXPECT_LT(mean, 1.0);
}

}  // namespace
}  // namespace volvelle
