// Effective sample size, noise edge, spikes, shrinkage, recall law and rotation averages against
// exact values, simulations and brute force.
#include "index/spectrum.hpp"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <random>

#include "index/matrix.hpp"
#include "index/recall_law.hpp"
#include "index/rotation_average.hpp"

namespace volvelle {
namespace {

std::vector<double> ar1(double rho, int lags) {
  std::vector<double> out;
  for (int l = 0; l <= lags; ++l) out.push_back(std::pow(rho, l));
  return out;
}

std::vector<float> ar1_rows(double rho, int n, int dim, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> rows(static_cast<std::size_t>(n * dim));
  for (int i = 0; i < dim; ++i) {
    double x = normal(random);
    for (int t = 0; t < n; ++t) {
      if (t > 0) x = rho * x + std::sqrt(1 - rho * rho) * normal(random);
      rows[static_cast<std::size_t>(t * dim + i)] = static_cast<float>(x);
    }
  }
  return rows;
}

TEST(Spectrum, InflationOfAnAutoregressiveProcess) {
  EXPECT_NEAR(variance_inflation(ar1(0.5, 30), 512, 128), 1.667, 0.01);
  for (const double rho : {0.0, 0.3, 0.5, 0.7}) {
    const auto rows = ar1_rows(rho, 512, 128, 3);
    const auto measured = autocorrelation(rows.data(), 512, 128, 128, inflation_lags(512));
    const double truth = (1 + rho * rho) / (1 - rho * rho);
    EXPECT_NEAR(variance_inflation(measured, 512, 128), truth, 0.05 * truth) << rho;
  }
}

TEST(Spectrum, NoiseEdges) {
  EXPECT_NEAR(noise_edge(0.25), 2.25, 1e-12);
  EXPECT_NEAR(noise_edge(0.25, ar1(0.0, 1)), 2.25, 1e-4);
  EXPECT_NEAR(noise_edge(128.0 / 512, ar1(0.5, 60)), 2.887, 0.01);
  EXPECT_NEAR(noise_edge(128.0 / 512, ar1(0.7, 100)), 3.869, 0.02);
  EXPECT_NEAR(noise_edge(128.0 / 4096, ar1(0.5, 60)), 1.528, 0.005);
  // The edge of as many independent rows as stand behind these: somewhat too low.
  for (const auto& [rho, n, edge] :
       {std::tuple{0.5, 512.0, 2.708}, {0.7, 512.0, 3.440}, {0.5, 4096.0, 1.509}}) {
    EXPECT_NEAR(noise_edge(128.0 / n * (1 + rho * rho) / (1 - rho * rho)), edge, 0.001);
  }
}

TEST(Spectrum, EdgeIsWhereSimulatedNoiseEnds) {
  double top = 0.0;  // fluctuates by a few percent at this size
  for (std::uint32_t seed = 8; seed < 16; ++seed) {
    const auto rows = ar1_rows(0.5, 512, 128, seed);
    MatrixD x = Eigen::Map<const MatrixF>(rows.data(), 512, 128).cast<double>();
    x.rowwise() -= MatrixD(x.colwise().mean()).row(0);
    const Eigen::VectorXd scale = (x.colwise().squaredNorm() / 512).cwiseSqrt().cwiseInverse();
    x = x * scale.asDiagonal();
    const Eigen::SelfAdjointEigenSolver<MatrixD> solver(MatrixD(x.transpose() * x / 512));
    top += solver.eigenvalues()[127] / 8;
  }
  EXPECT_NEAR(top, noise_edge(0.25, ar1(0.5, 60)), 0.05 * 2.887);
}

TEST(Spectrum, SpikesAreInverted) {
  // A spike of 5 at gamma = 1/4 shows at ell (1 + gamma / (ell - 1)).
  const double gamma = 0.25;
  const double y = 5.0 * (1 + gamma / 4.0);
  const Spike spike = invert_spike(y, gamma);
  EXPECT_NEAR(spike.value, 5.0, 1e-9);
  EXPECT_NEAR(spike.overlap, (1 - gamma / 16) / (1 + gamma / 4), 1e-9);
  EXPECT_EQ(invert_spike(2.0, gamma).overlap, 0.0);  // inside the bulk
}

TEST(Spectrum, ShrinksNoiseToTheIdentityAndLeavesSignal) {
  const auto noise = ar1_rows(0.0, 200, 64, 4);
  const MatrixD x = Eigen::Map<const MatrixF>(noise.data(), 200, 64).cast<double>();
  std::vector<double> moment = to_vector(MatrixD(x.transpose() * x / 200));
  EXPECT_GT(shrinkage_intensity(moment, 200), 0.9);
  Eigen::VectorXd strong = Eigen::VectorXd::Ones(64);
  strong.head(4).setConstant(100);
  const MatrixD y = x * strong.cwiseSqrt().asDiagonal();
  std::vector<double> signal = to_vector(MatrixD(y.transpose() * y / 200));
  EXPECT_LT(shrinkage_intensity(signal, 200), 0.05);
  double trace = 0.0;
  for (std::size_t i = 0; i < 64; ++i) trace += moment[i * 64 + i];
  shrink(moment, 1.0);
  EXPECT_NEAR(moment[0], trace / 64, 1e-12);
  EXPECT_EQ(moment[1], 0.0);
}

TEST(RecallLaw, ValuesWorkedOutElsewhere) {
  const double rho[] = {.01, .02, .04, .08, .16};
  const double expected[3][5] = {{.8999, .8585, .7999, .7174, .6012},
                                 {.8905, .8452, .7814, .6919, .5671},
                                 {.8735, .8214, .7483, .6467, .5080}};
  const double p[] = {1.0 / 64, 1.0 / 128, 1.0 / 512};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 5; ++j) EXPECT_NEAR(predicted_recall(rho[j], p[i]), expected[i][j], 6e-5);
  }
  // To first order 1 - h(z) / sqrt(2 pi) sqrt(rho), which is within .001 up to rho = .1.
  EXPECT_NEAR(normal_upper_quantile(1.0 / 64), 2.1539, 5e-5);
  for (const double r : {.001, .01, .03, .1})
    EXPECT_NEAR(predicted_recall(r, 1.0 / 64), 1 - 1.0014 * std::sqrt(r), 0.001) << r;
  EXPECT_EQ(predicted_recall(0.0, 0.1), 1.0);
  EXPECT_EQ(predicted_recall(1.0, 0.1), 0.1);
}

TEST(RecallLaw, HoldsInSimulationAndMarginsBoundIt) {
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  constexpr int kRows = 4096;
  constexpr int kTop = 64;
  const double rho = 0.05;
  double recall = 0.0;
  double cantelli = 0.0;
  double gaussian = 0.0;
  constexpr int kTrials = 60;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> s(kRows), coded(kRows), margins(kRows), variances(kRows, rho / (1 - rho));
    for (int j = 0; j < kRows; ++j) {
      s[static_cast<std::size_t>(j)] = normal(random);
      coded[static_cast<std::size_t>(j)] =
          s[static_cast<std::size_t>(j)] + std::sqrt(rho / (1 - rho)) * normal(random);
    }
    auto sorted = s;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    auto sorted_codes = coded;
    std::sort(sorted_codes.begin(), sorted_codes.end(), std::greater<>());
    int hits = 0;
    for (std::size_t j = 0; j < kRows; ++j)
      hits += s[j] >= sorted[kTop - 1] && coded[j] >= sorted_codes[kTop - 1] ? 1 : 0;
    recall += static_cast<double>(hits) / kTop / kTrials;
    const double tau = (sorted[kTop - 1] + sorted[kTop]) / 2;
    for (std::size_t j = 0; j < kRows; ++j) margins[j] = s[j] - tau;
    cantelli += missed_bound_cantelli(margins, variances, kTop) / kTrials;
    gaussian += missed_bound_subgaussian(margins, variances, kTop) / kTrials;
  }
  EXPECT_NEAR(recall, predicted_recall(rho, 1.0 / 64), 0.015);
  EXPECT_GE(cantelli, 1 - recall);
  EXPECT_GE(gaussian, 1 - recall);
}

TEST(RotationAverage, EqualsTheBruteForceAverage) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  constexpr int kBands = 5;
  constexpr int kDim = 2 * kBands;
  MatrixD a(kDim, kDim);
  for (double& x : a.reshaped()) x = normal(random);
  const MatrixD s = a * a.transpose();
  const std::vector<double> theta{1.0, 0.3, 0.05, 0.001, 0.0};
  Eigen::VectorXd mean(kDim);
  for (double& x : mean) x = normal(random);
  for (const PairLayout layout : {PairLayout::kHalves, PairLayout::kNeighbours}) {
    MatrixD sum = MatrixD::Zero(kDim, kDim);
    Eigen::VectorXd mean_sum = Eigen::VectorXd::Zero(kDim);
    for (int p = 17; p < 17 + 300; ++p) {
      MatrixD r = MatrixD::Zero(kDim, kDim);
      for (int b = 0; b < kBands; ++b) {
        const int x = layout == PairLayout::kHalves ? b : 2 * b;
        const int y = layout == PairLayout::kHalves ? b + kBands : 2 * b + 1;
        const double angle = theta[static_cast<std::size_t>(b)] * p;
        r(x, x) = r(y, y) = std::cos(angle);
        r(y, x) = std::sin(angle);
        r(x, y) = -std::sin(angle);
      }
      sum += r * s * r.transpose() / 300;
      mean_sum += r * mean / 300;
    }
    const auto average = rotation_average(to_vector(s), theta, layout, {17, 300});
    const auto average_mean = rotation_average_mean(std::vector<double>(mean.begin(), mean.end()),
                                                    theta, layout, {17, 300});
    EXPECT_LT((as_square(average, kDim) - sum).norm(), 1e-12 * s.norm());
    for (int i = 0; i < kDim; ++i)
      EXPECT_NEAR(average_mean[static_cast<std::size_t>(i)], mean_sum[i], 1e-12);
  }
}

}  // namespace
}  // namespace volvelle
