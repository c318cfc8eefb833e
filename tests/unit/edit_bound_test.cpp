// Bounds of edits against what queries can really do: attained where they say so, never exceeded,
// and ordered as the theory says; variation of weights on random and extremal cases.
#include "bounds/edit_bound.hpp"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <numeric>
#include <random>

#include "bounds/output_bound.hpp"
#include "bounds/weight_variation.hpp"
#include "rope/frequencies.hpp"

namespace volvelle {
namespace {

std::vector<float> normal(std::mt19937& random, std::size_t n, float size = 1.0f) {
  std::normal_distribution<float> draw(0.0f, size);
  std::vector<float> x(n);
  for (float& v : x) v = draw(random);
  return x;
}

/// A score between a rotated query and the difference of two stored keys.
double change_of(const BandLayout& layout, std::span<const float> q, std::span<const float> from,
                 std::span<const float> to, const BandFrequencies& bands, std::uint64_t position) {
  std::complex<double> sum = 0.0;
  const auto at = [](std::span<const float> x, int i) {
    return static_cast<double>(x[static_cast<std::size_t>(i)]);
  };
  for (int b = 0; b < layout.n_bands(); ++b) {
    const int x = layout.first(b), y = layout.second(b);
    const std::complex<double> query(at(q, x), at(q, y));
    const std::complex<double> edit(at(to, x) - at(from, x), at(to, y) - at(from, y));
    sum += query * std::polar(1.0, bands.angle(static_cast<std::size_t>(b), position)) *
           std::conj(edit);
  }
  double rest = 0.0;
  for (int i = layout.rotated_dims; i < layout.head_dim; ++i)
    rest += at(q, i) * (at(to, i) - at(from, i));
  return sum.real() + rest;
}

TEST(EditBound, NoPositionAndNoQueryExceedsIt) {
  std::mt19937 random(1);
  for (const auto kind : {RopeLayout::kAdjacentPairs, RopeLayout::kHalfSplit}) {
    for (const int rotated : {32, 16}) {
      const BandLayout layout{kind, 32, rotated};
      const BandFrequencies bands =
          band_frequencies({.rotated_dims = rotated, .base = 1e5}).value();
      const int n_embd = 96;
      const auto weight = normal(random, 32 * 96, 0.1f);
      const auto bias = normal(random, 32, 0.5f);
      const auto gain = normal(random, 96);
      const auto shift = normal(random, 96, 0.2f);
      for (const InputNorm norm : {InputNorm::kRms, InputNorm::kLayer}) {
        const QueryWeights weights{weight, bias, gain, shift, norm, n_embd};
        const QueryFactor factor = query_factor(layout, weights).value();
        double closest = 0.0;
        for (int trial = 0; trial < 300; ++trial) {
          // A token: any vector, normalised.
          std::vector<float> x = normal(random, 96);
          double mean = 0.0, square = 0.0;
          if (norm == InputNorm::kLayer) mean = std::accumulate(x.begin(), x.end(), 0.0) / n_embd;
          for (const float v : x) square += (v - mean) * (v - mean);
          const double scale = 1.0 / std::sqrt(square / n_embd);
          std::vector<float> q(32);
          for (std::size_t i = 0; i < 32; ++i) {
            double sum = bias[i];
            for (std::size_t j = 0; j < 96; ++j)
              sum += static_cast<double>(weight[i * 96 + j]) *
                     (static_cast<double>(gain[j]) * (x[j] - mean) * scale +
                      static_cast<double>(shift[j]));
            q[i] = static_cast<float>(sum);
          }
          const auto key = normal(random, 32);
          auto edited = key;
          if (trial % 2 == 0) {
            edited[static_cast<std::size_t>(layout.first(trial % layout.n_bands()))] += 1.0f;
          } else {
            for (float& v : edited) v += 0.1f * normal(random, 1)[0];
          }
          const BandEdit edit = edit_between(layout, key, edited);
          const double bound = edit_bound(factor, edit);
          const double known = edit_bound(layout, q, edit);
          ASSERT_LE(known, bound * (1 + 1e-6));
          for (int k = 0; k < 20; ++k) {
            const double change =
                std::abs(change_of(layout, q, key, edited, bands, random() % 100000));
            ASSERT_LE(change, known * (1 + 1e-6));
            closest = std::max(closest, change / known);
          }
        }
        EXPECT_GT(closest, 0.9);  // edits of one band attain it
      }
    }
  }
}

// The longest band is attained: u along the largest singular vector of the band's two rows.
TEST(EditBound, TheLongestQueryBandIsAttained) {
  std::mt19937 random(2);
  const int n = 64;
  const BandLayout layout{RopeLayout::kHalfSplit, 16, 16};
  const auto weight = normal(random, 16 * 64);
  const auto gain = normal(random, 64);
  const QueryFactor factor =
      query_factor(layout, {.weight = weight, .gain = gain, .n_embd = n}).value();
  for (int b = 0; b < 8; ++b) {
    Eigen::MatrixXd rows(2, n);
    for (int j = 0; j < n; ++j) {
      const auto at = [&](int i) {
        return static_cast<double>(weight[static_cast<std::size_t>(i * n + j)]);
      };
      rows(0, j) = at(layout.first(b)) * static_cast<double>(gain[static_cast<std::size_t>(j)]);
      rows(1, j) = at(layout.second(b)) * static_cast<double>(gain[static_cast<std::size_t>(j)]);
    }
    const Eigen::JacobiSVD<Eigen::MatrixXd> svd(rows, Eigen::ComputeThinV);
    const Eigen::VectorXd u = std::sqrt(static_cast<double>(n)) * svd.matrixV().col(0);
    // Stored bounds are rounded up by 1 + 2^-20.
    const double unrounded = factor.band[static_cast<std::size_t>(b)] / (1.0 + 0x1p-20);
    EXPECT_NEAR((rows * u).norm() / unrounded, 1.0, 1e-6);
  }
  // Blocks are never longer than the product of their bands.
  for (std::size_t b = 0; b < 8; ++b) {
    for (std::size_t c = 0; c < 8; ++c)
      EXPECT_LE(factor.blocks[b * 8 + c], factor.band[b] * factor.band[c] * (1 + 1e-6));
  }
}

TEST(EditBound, NormalisedQueriesNeedNoWeights) {
  std::mt19937 random(3);
  const BandLayout layout{RopeLayout::kHalfSplit, 64, 64};
  const auto gain = normal(random, 64);
  const QueryFactor factor = normalised_query_factor(layout, gain).value();
  double closest = 0.0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> q = normal(random, 64);
    double square = 0.0;
    for (const float v : q) square += static_cast<double>(v) * static_cast<double>(v);
    for (std::size_t i = 0; i < 64; ++i)
      q[i] *= gain[i] / static_cast<float>(std::sqrt(square / 64));
    const auto key = normal(random, 64);
    auto edited = key;
    for (float& v : edited) v += 0.1f * normal(random, 1)[0];
    const BandEdit edit = edit_between(layout, key, edited);
    const double known = edit_bound(layout, q, edit);
    const double bound = edit_bound(factor, edit);
    ASSERT_LE(known, bound);
    closest = std::max(closest, known / bound);
  }
  EXPECT_GT(closest, 0.6);
}

TEST(EditBound, BadSizesAreErrors) {
  const std::vector<float> weight(16 * 8, 1.0f), few(3, 1.0f);
  const BandLayout layout{RopeLayout::kHalfSplit, 16, 16};
  EXPECT_TRUE(query_factor(layout, {.weight = weight, .n_embd = 8}).ok());
  EXPECT_FALSE(query_factor(layout, {.weight = weight, .n_embd = 9}).ok());
  EXPECT_FALSE(query_factor(layout, {.weight = weight, .bias = few, .n_embd = 8}).ok());
  EXPECT_FALSE(query_factor({RopeLayout::kNone, 16, 16}, {.weight = weight, .n_embd = 8}).ok());
  EXPECT_FALSE(
      query_factor({RopeLayout::kHalfSplit, 16, 18}, {.weight = weight, .n_embd = 8}).ok());
  EXPECT_FALSE(normalised_query_factor(layout, few).ok());
  std::vector<float> broken = weight;
  broken[5] = std::nanf("");
  EXPECT_FALSE(query_factor(layout, {.weight = broken, .n_embd = 8}).ok());
}

std::vector<double> softmax(std::vector<double> x) {
  double sum = 0.0;
  for (double& v : x) sum += v = std::exp(v);
  for (double& v : x) v /= sum;
  return x;
}
double variation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]) / 2;
  return sum;
}

TEST(WeightVariation, BoundsHoldAndTheUniformOneIsAttained) {
  std::mt19937 random(4);
  std::normal_distribution<double> draw;
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  double closest = 0.0;
  for (int trial = 0; trial < 20000; ++trial) {
    const std::size_t n = 2 + random() % 12;
    const double width = trial % 3 == 0 ? 3.0 : 0.3;
    const double small = 0.05, large = trial % 2 == 0 ? 0.5 : 2.0;
    std::vector<double> logits(n), changed(n), eps(n);
    for (std::size_t j = 0; j < n; ++j) {
      logits[j] = width * draw(random);
      eps[j] = j % 3 == 0 ? large : small;
      changed[j] =
          logits[j] + eps[j] * (trial % 4 == 0 ? (uniform(random) > 0 ? 1 : -1) : uniform(random));
    }
    const auto p = softmax(logits), used = softmax(changed);
    const double truth = variation(p, used);
    const double limit = *std::max_element(eps.begin(), eps.end());
    double heavy = 0.0;
    for (std::size_t j = 0; j < n; ++j) heavy += eps[j] > small ? used[j] : 0.0;
    ASSERT_LE(truth, uniform_variation(limit) + 1e-12);
    ASSERT_LE(truth, weighted_variation(used, eps) + 1e-12);
    ASSERT_LE(truth, two_level_variation(small, heavy, large) + 1e-12);
    closest = std::max(closest, truth / uniform_variation(limit));
  }
  EXPECT_GT(closest, 0.9);
  for (const double eps : {0.01, 0.5, 2.0}) {
    const double first = 1.0 / (1.0 + std::exp(eps));
    const std::vector<double> p = {first, 1 - first};
    const auto used = softmax({std::log(p[0]) + eps, std::log(p[1]) - eps});
    EXPECT_NEAR(variation(p, used), uniform_variation(eps), 1e-12);
  }
}

TEST(WeightVariation, LeavingOutAndMerging) {
  std::mt19937 random(5);
  std::normal_distribution<double> draw;
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t n = 12, kept = 8;
    std::vector<double> logits(n);
    for (double& x : logits) x = 2 * draw(random);
    const auto p = softmax(logits);
    std::vector<double> used = softmax({logits.begin(), logits.begin() + kept});
    used.resize(n, 0.0);
    const double share = std::accumulate(p.begin() + kept, p.end(), 0.0);
    EXPECT_NEAR(variation(p, used), share, 1e-12);
    double kept_sum = 0.0, largest = -1e300;
    for (std::size_t j = 0; j < n; ++j) {
      if (j < kept) kept_sum += std::exp(logits[j]);
      if (j >= kept) largest = std::max(largest, logits[j]);
    }
    EXPECT_LE(share, evicted_share(n - kept, largest, std::log(kept_sum)) + 1e-12);
  }
  EXPECT_EQ(evicted_share(0, 5.0, 1.0), 0.0);
  EXPECT_NEAR(evicted_share(4, 800.0, 790.0), 1.0, 1e-4);  // no overflow
  // A merged cluster with a bias of ln 3 reads as three rows at its place.
  const auto three = softmax({0.7, 0.7, 0.7, -0.2});
  const auto merged = softmax({0.7 + std::log(3.0), -0.2});
  EXPECT_NEAR(three[0] + three[1] + three[2], merged[0], 1e-12);
  EXPECT_DOUBLE_EQ(output_change(0.1, 2.0, 0.3), 0.7);
}

TEST(OutputBound, RadiusNormAndLayer) {
  std::mt19937 random(6);
  const auto values = normal(random, 50 * 8, 2.0f);
  const double radius = value_radius(values, 8);
  const auto weight = normal(random, 24 * 16);  // [24, 2 heads of 8]
  double closest = 0.0;
  for (int trial = 0; trial < 500; ++trial) {
    double changes[2] = {}, bounds[2] = {}, norms[2] = {};
    Eigen::VectorXd sum = Eigen::VectorXd::Zero(24);
    for (int head = 0; head < 2; ++head) {
      std::vector<double> a(50), b(50);
      for (std::size_t i = 0; i < 50; ++i) {
        a[i] = trial % 2 == 0 ? normal(random, 1)[0] : (i == 0 ? 20.0 : 0.0);
        b[i] = trial % 2 == 0 ? normal(random, 1)[0] : (i == 1 + i % 7 ? 20.0 : 0.0);
      }
      const auto p = softmax(a), used = softmax(b);
      Eigen::VectorXd change = Eigen::VectorXd::Zero(8);
      for (std::size_t j = 0; j < 50; ++j) {
        for (int i = 0; i < 8; ++i)
          change[i] +=
              (used[j] - p[j]) * static_cast<double>(values[j * 8 + static_cast<std::size_t>(i)]);
      }
      changes[head] = change.norm();
      bounds[head] = output_change(variation(p, used), radius, 0.0);
      ASSERT_LE(changes[head], bounds[head]);
      closest = std::max(closest, changes[head] / bounds[head]);
      norms[head] = spectral_norm(weight, 16, 8 * head, 8);
      const Eigen::Map<const Eigen::Matrix<float, 24, 16, Eigen::RowMajor>> w(weight.data());
      const Eigen::MatrixXd part = w.middleCols(8 * head, 8).cast<double>();
      EXPECT_NEAR(norms[head] / part.jacobiSvd().singularValues()[0], 1.0, 2e-6);
      sum += part * change;
    }
    ASSERT_LE(sum.norm(), layer_change(norms, bounds));
  }
  EXPECT_GT(closest, 0.3);
}

}  // namespace
}  // namespace volvelle
