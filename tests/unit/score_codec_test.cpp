// Score codes against their algebra: the exact 2 x 2 example, optimality, special cases, nesting,
// and agreement with the truncated SVD of a score matrix computed another way.
#include "volvelle/index/score_codec.hpp"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "index/matrix.hpp"
#include "volvelle/index/moments.hpp"

namespace volvelle {
namespace {

MatrixD random_spd(int dim, int rank, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  MatrixD a(dim, rank);
  for (double& x : a.reshaped()) x = normal(random);
  return a * a.transpose() / rank;
}

ScoreCodec codec_of(CodecKind kind, const MatrixD& sq, const MatrixD& sk, int rank) {
  auto codec = make_score_codec(kind, to_vector(sq), to_vector(sk), rank);
  EXPECT_TRUE(codec.ok());
  return std::move(*codec);
}

MatrixD square(const std::vector<double>& values) {
  const auto dim = static_cast<Eigen::Index>(std::lround(std::sqrt(values.size())));
  return as_square(values, dim);
}

TEST(ScoreCodec, TheTwoByTwoExample) {
  MatrixD sq(2, 2);
  sq << 2, 1, 1, 2;
  const MatrixD sk = Eigen::Vector2d(4, 1).asDiagonal();
  const ScoreCodec codec = codec_of(CodecKind::kBalanced, sq, sk, 1);
  EXPECT_NEAR(codec.lambda[0] * codec.lambda[0], 8.6055512755, 1e-9);
  EXPECT_NEAR(codec.lambda[1] * codec.lambda[1], 1.3944487245, 1e-9);
  EXPECT_NEAR(std::abs(codec.encode[0]), 0.8196310014, 1e-9);
  EXPECT_NEAR(std::abs(codec.encode[1]), 0.4963285983, 1e-9);
  EXPECT_NEAR(std::abs(codec.decode[0]), 1.1176067591, 1e-9);
  EXPECT_NEAR(std::abs(codec.decode[1]), 0.1691920496, 1e-9);
  const MatrixD m = square(codec.projector());
  MatrixD expected(2, 2);
  expected << .9160251472, .5547001962, .1386750491, .0839748528;
  EXPECT_LT((m - expected).norm(), 1e-9);
  EXPECT_LT((m * m - m).norm(), 1e-12);
  // Balanced: both sides see the coordinate with the weight lambda_1.
  const Eigen::RowVector2d e(codec.encode[0], codec.encode[1]);
  const Eigen::Vector2d d(codec.decode[0], codec.decode[1]);
  EXPECT_GT(e[0] * d[0], 0.0);  // the sign is free, but the same
  EXPECT_NEAR(e * sk * e.transpose(), 2.9335219916, 1e-9);
  EXPECT_NEAR(d.transpose() * sq * d, 2.9335219916, 1e-9);
  EXPECT_NEAR(codec.lambda[1], 1.1808677845, 1e-9);
  EXPECT_NEAR(score_error(codec.projector(), to_vector(sq), to_vector(sk)), 1.3944487245, 1e-9);
  EXPECT_NEAR(score_power(to_vector(sq), to_vector(sk)), 10.0, 1e-12);
  const ScoreCodec pca = codec_of(CodecKind::kPrincipal, sq, sk, 1);
  EXPECT_NEAR(score_error(pca.projector(), to_vector(sq), to_vector(sk)), 2.0, 1e-12);
}

TEST(ScoreCodec, ErrorIsTheSumOfWhatIsLeftOut) {
  const MatrixD sq = random_spd(24, 40, 1);
  const MatrixD sk = random_spd(24, 40, 2);
  const double power = score_power(to_vector(sq), to_vector(sk));
  for (const int rank : {1, 8, 23, 24}) {
    const ScoreCodec codec = codec_of(CodecKind::kBalanced, sq, sk, rank);
    double left = 0.0;
    for (std::size_t i = static_cast<std::size_t>(rank); i < 24; ++i)
      left += codec.lambda[i] * codec.lambda[i];
    EXPECT_NEAR(score_error(codec.projector(), to_vector(sq), to_vector(sk)), left, 1e-12 * power);
    const Eigen::Map<const MatrixD> e(codec.encode.data(), rank, 24);
    const Eigen::Map<const MatrixD> d(codec.decode.data(), 24, rank);
    EXPECT_LT((e * d - MatrixD::Identity(rank, rank)).norm(), 1e-12);
    // Balanced: both sides see coordinate i with the same weight lambda_i.
    const Eigen::Map<const Eigen::VectorXd> lambda(codec.lambda.data(), rank);
    EXPECT_LT((e * sk * e.transpose() - MatrixD(lambda.asDiagonal())).norm(), 1e-12 * power);
    EXPECT_LT((d.transpose() * sq * d - MatrixD(lambda.asDiagonal())).norm(), 1e-12 * power);
  }
}

TEST(ScoreCodec, NoPerturbationIsBetter) {
  const MatrixD sq = random_spd(24, 40, 3);
  const MatrixD sk = random_spd(24, 40, 4);
  const ScoreCodec codec = codec_of(CodecKind::kBalanced, sq, sk, 8);
  const double best = score_error(codec.projector(), to_vector(sq), to_vector(sk));
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (int trial = 0; trial < 50; ++trial) {
    ScoreCodec other = codec;
    for (double& x : other.encode) x += 1e-3 * normal(random);
    for (double& x : other.decode) x += 1e-3 * normal(random);
    EXPECT_GE(score_error(other.projector(), to_vector(sq), to_vector(sk)), best);
  }
}

TEST(ScoreCodec, SpecialMoments) {
  const MatrixD s = random_spd(16, 30, 6);
  const MatrixD one = MatrixD::Identity(16, 16);
  const MatrixD pca = square(codec_of(CodecKind::kPrincipal, one, s, 5).projector());
  EXPECT_LT((square(codec_of(CodecKind::kBalanced, one, s, 5).projector()) - pca).norm(), 1e-9);
  EXPECT_LT((square(codec_of(CodecKind::kBalanced, s, one, 5).projector()) - pca).norm(), 1e-9);
  EXPECT_LT((square(codec_of(CodecKind::kBalanced, s, s, 5).projector()) - pca).norm(), 1e-9);
}

/// Eigenvalues below 1e-6 of the largest raised to that, as codes do it.
MatrixD floored(const MatrixD& moment) {
  const Eigen::SelfAdjointEigenSolver<MatrixD> solver(moment);
  const Eigen::VectorXd values = solver.eigenvalues().cwiseMax(1e-6 * solver.eigenvalues()[23]);
  return solver.eigenvectors() * values.asDiagonal() * solver.eigenvectors().transpose();
}

TEST(ScoreCodec, SingularMomentsGiveNumbers) {
  const MatrixD sq = random_spd(24, 14, 7);
  const MatrixD sk = random_spd(24, 17, 8);
  const double power = score_power(to_vector(sq), to_vector(sk));
  // The best that any code can do, from the moments as they are: Sk Sq has the eigenvalues.
  Eigen::VectorXd best = Eigen::EigenSolver<MatrixD>(sk * sq).eigenvalues().real();
  std::sort(best.begin(), best.end(), std::greater<>());
  for (const int rank : {4, 14, 24}) {
    const ScoreCodec codec = codec_of(CodecKind::kBalanced, sq, sk, rank);
    double left = 0.0;
    for (std::size_t i = static_cast<std::size_t>(rank); i < 24; ++i)
      left += codec.lambda[i] * codec.lambda[i];
    // Of the moments with their floor the identity is exact, but for the floor of 1e-12 on each of
    // the 24 squares.
    EXPECT_NEAR(score_error(codec.projector(), to_vector(sq), to_vector(floored(sk))), left,
                3e-11 * power);
    // Of the moments as they are no more is lost than the floor adds to 24 eigenvalues of 1e-6.
    const double error = score_error(codec.projector(), to_vector(sq), to_vector(sk));
    const double least = best.tail(24 - rank).sum();
    EXPECT_GT(error, least - 1e-12 * power);
    EXPECT_LT(error, least + 24e-6 * power);
  }
}

TEST(ScoreCodec, MomentsOfZerosGiveNumbers) {
  const MatrixD zero = MatrixD::Zero(8, 8);
  const MatrixD one = MatrixD::Identity(8, 8);
  for (const CodecKind kind :
       {CodecKind::kBalanced, CodecKind::kPrincipal, CodecKind::kDimensions}) {
    for (const auto& [sq, sk] :
         {std::pair(zero, one), std::pair(one, zero), std::pair(zero, zero)}) {
      const ScoreCodec codec = codec_of(kind, sq, sk, 8);
      for (const auto* values : {&codec.encode, &codec.decode, &codec.lambda, &codec.spread}) {
        for (const double x : *values) EXPECT_LT(std::abs(x), 1e9);  // NaN is not less either
      }
    }
  }
}

TEST(ScoreCodec, FromDataItIsTheTruncatedSvdOfTheScores) {
  // KQ-SVD's oracle: with uncentred moments of the data, Q M K^T is the best rank-r approximation
  // of Q K^T.
  std::mt19937 random(9);
  std::normal_distribution<double> normal;
  MatrixD q(60, 12);
  MatrixD k(80, 12);
  for (double& x : q.reshaped()) x = normal(random);
  for (double& x : k.reshaped()) x = normal(random);
  const ScoreCodec codec = codec_of(CodecKind::kBalanced, q.transpose() * q, k.transpose() * k, 5);
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(Eigen::MatrixXd(q * k.transpose()),
                                              Eigen::ComputeThinU | Eigen::ComputeThinV);
  const Eigen::MatrixXd best = svd.matrixU().leftCols(5) *
                               svd.singularValues().head(5).asDiagonal() *
                               svd.matrixV().leftCols(5).transpose();
  EXPECT_LT((q * square(codec.projector()) * k.transpose() - best).cwiseAbs().maxCoeff(), 1e-10);
}

TEST(ScoreCodec, ShorterCodesArePrefixes) {
  const MatrixD sq = random_spd(32, 50, 10);
  const MatrixD sk = random_spd(32, 50, 11);
  const ScoreCodec longer = codec_of(CodecKind::kBalanced, sq, sk, 32);
  const ScoreCodec shorter = codec_of(CodecKind::kBalanced, sq, sk, 16);
  for (std::size_t i = 0; i < 16 * 32; ++i) EXPECT_NEAR(longer.encode[i], shorter.encode[i], 1e-9);
  // And so are the scores that they give.
  std::mt19937 random(16);
  std::normal_distribution<double> normal;
  MatrixD q(40, 32);
  MatrixD k(50, 32);
  for (double& x : q.reshaped()) x = normal(random);
  for (double& x : k.reshaped()) x = normal(random);
  const auto scores = [&](const ScoreCodec& codec) {
    const Eigen::Map<const MatrixD> e(codec.encode.data(), codec.rank, 32);
    const Eigen::Map<const MatrixD> d(codec.decode.data(), 32, codec.rank);
    return MatrixD((q * d.leftCols(16)) * (k * e.topRows(16).transpose()).transpose());
  };
  EXPECT_LT((scores(longer) - scores(shorter)).cwiseAbs().maxCoeff(), 1e-10);
}

TEST(ScoreCodec, AGroupSharesTheCodeOfItsSummedMoments) {
  const MatrixD sk = random_spd(16, 30, 12);
  const MatrixD a = random_spd(16, 30, 13);
  const MatrixD b = random_spd(16, 30, 14);
  for (const auto& [of_a, of_b] : {std::pair{1.0, 1.0}, {2.0, 0.25}}) {
    const ScoreCodec shared = codec_of(CodecKind::kBalanced, of_a * a + of_b * b, sk, 6);
    double left = 0.0;
    for (std::size_t i = 6; i < 16; ++i) left += shared.lambda[i] * shared.lambda[i];
    const double errors = of_a * score_error(shared.projector(), to_vector(a), to_vector(sk)) +
                          of_b * score_error(shared.projector(), to_vector(b), to_vector(sk));
    EXPECT_NEAR(errors, left, 1e-12 * score_power(to_vector(of_a * a + of_b * b), to_vector(sk)));
    // A code of either head alone is worse for both together.
    for (const MatrixD& one : {a, b}) {
      const std::vector<double> own = codec_of(CodecKind::kBalanced, one, sk, 6).projector();
      EXPECT_GT(of_a * score_error(own, to_vector(a), to_vector(sk)) +
                    of_b * score_error(own, to_vector(b), to_vector(sk)),
                errors);
    }
  }
}

TEST(ScoreCodec, DimensionsAreSortedByTheirShare) {
  const MatrixD sq = Eigen::Vector3d(1, 9, 2).asDiagonal();
  const MatrixD sk = Eigen::Vector3d(4, 1, 1).asDiagonal();
  const ScoreCodec codec = codec_of(CodecKind::kDimensions, sq, sk, 2);
  EXPECT_EQ(codec.encode, (std::vector<double>{0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(codec.lambda, (std::vector<double>{3, 2, std::sqrt(2.0)}));
}

TEST(ScoreCodec, RefusesWhatIsNoMoment) {
  const std::vector<double> one{1, 0, 0, 1};
  EXPECT_FALSE(make_score_codec(CodecKind::kBalanced, one, one, 3).ok());
  EXPECT_FALSE(make_score_codec(CodecKind::kBalanced, one, one, 0).ok());
  std::vector<double> bad = one;
  bad[0] = std::nan("");
  const auto refused = make_score_codec(CodecKind::kBalanced, bad, one, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("NaN"), std::string::npos);
}

TEST(Moments, MergeInPartsEqualsOnePassAndSkipsNaN) {
  std::mt19937 random(15);
  std::normal_distribution<float> normal;
  std::vector<float> rows(300 * 8);
  for (float& x : rows) x = 3.0f + normal(random);
  rows[100 * 8 + 3] = std::nanf("");
  Moments whole(8);
  whole.add(rows.data(), 300, 8);
  Moments parts(8);
  Moments second(8);
  parts.add(rows.data(), 111, 8);
  second.add(rows.data() + 111 * 8, 189, 8);
  parts.merge(second);
  EXPECT_EQ(whole.n_left_out(), 1);
  EXPECT_EQ(whole.weight(), 299.0);
  const auto a = whole.covariance();
  const auto b = parts.covariance();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12);
  // Against two passes over the rows.
  double mean = 0.0;
  double square = 0.0;
  for (int t = 0; t < 300; ++t)
    mean += t == 100 ? 0.0 : rows[static_cast<std::size_t>(t) * 8] / 299.0;
  for (int t = 0; t < 300; ++t)
    square += t == 100 ? 0.0 : std::pow(rows[static_cast<std::size_t>(t) * 8] - mean, 2) / 299.0;
  EXPECT_NEAR(a[0], square, 1e-9);
}

}  // namespace
}  // namespace volvelle
