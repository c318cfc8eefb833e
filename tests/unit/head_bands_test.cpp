// A head made of known amplitudes, phases and noise, whose logits at any distance, their
// deviations, capacity, range and alias are closed forms.
#include "index/head_bands.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <numeric>
#include <random>

#include "index/band_curves.hpp"

namespace volvelle {
namespace {

using Complex = std::complex<double>;

constexpr std::size_t kBands = 8;
constexpr std::int64_t kHalf = 8000;
constexpr std::int64_t kTokens = kSinkTokens + 2 * kHalf;
constexpr double kScale = 0.125;

BandFrequencies frequencies(int d, double base) {
  return band_frequencies({.rotated_dims = d, .base = base}).value();
}

/// Band b of every query is u_b + w, with |w| = 1 of random phase, and of the key that it should
/// find kappa_b + A_b e^(-i phi_b) w: the mean product of the two, less the mean key's, is
/// A_b e^(i phi_b). The dimension that does not turn is 1 + s and 2 + s / 2, s = +-1. Queries and
/// keys come in couples of opposite w and s, so that all means are exact.
struct MadeHead {
  BandFrequencies bands = frequencies(16, 1e4);
  BandLayout layout;
  std::vector<Complex> u, kappa;  // [n_bands]
  std::vector<double> amplitude, phase;
  std::vector<float> queries, keys;   // [kTokens, dim]
  std::vector<std::int64_t> targets;  // queries of the second half find keys of the first

  explicit MadeHead(RopeLayout pairs);

  double background(double distance) const {
    double sum = 2.0;
    for (std::size_t b = 0; b < kBands; ++b)
      sum += (u[b] * std::conj(kappa[b]) * std::polar(1.0, bands.theta[b] * distance)).real();
    return kScale * sum;
  }
  double excess(double distance) const {
    double sum = 0.5;
    for (std::size_t b = 0; b < kBands; ++b)
      sum += amplitude[b] * std::cos(bands.theta[b] * distance + phase[b]);
    return kScale * sum;
  }
  /// Of a band of random phase: Var Re(q conj(n)) = E|q|^2 E|n|^2 / 2; without turning E q^2 E n^2.
  double sigma() const {
    double sum = 2.0 * 0.25;
    for (std::size_t b = 0; b < kBands; ++b)
      sum += 0.5 * (std::norm(u[b]) + 1.0) * amplitude[b] * amplitude[b];
    return kScale * std::sqrt(sum);
  }
  /// Only u meets noise: w meets the key that was made for it.
  double target_sigma() const {
    double sum = 0.25;
    for (std::size_t b = 0; b < kBands; ++b)
      sum += 0.5 * std::norm(u[b]) * amplitude[b] * amplitude[b];
    return kScale * std::sqrt(sum);
  }
  double z(double distance) const { return excess(distance) / std::hypot(sigma(), target_sigma()); }

 private:
  void put(std::int64_t t, const std::vector<Complex>& row, double unturned,
           std::vector<float>& rows) const {
    float* const to = rows.data() + t * layout.head_dim;
    for (std::size_t b = 0; b < kBands; ++b) {
      const Complex z = row[b] * std::polar(1.0, bands.theta[b] * static_cast<double>(t));
      to[layout.first(static_cast<int>(b))] = static_cast<float>(z.real());
      to[layout.second(static_cast<int>(b))] = static_cast<float>(z.imag());
    }
    to[layout.rotated_dims] = static_cast<float>(unturned);
  }
  void write(std::int64_t asks, std::int64_t holds, const std::vector<Complex>& w, double s) {
    std::vector<Complex> q, k;
    for (std::size_t b = 0; b < kBands; ++b) {
      q.push_back(u[b] + w[b]);
      k.push_back(kappa[b] + std::polar(amplitude[b], -phase[b]) * w[b]);
    }
    put(asks, q, 1.0 + s, queries);
    put(holds, k, 2.0 + 0.5 * s, keys);
  }
  /// Queries from `asks` on for keys that lie anywhere in the half from `holds` on.
  void write_half(std::int64_t asks, std::int64_t holds, std::mt19937& random) {
    std::vector<std::int64_t> order(kHalf);
    std::iota(order.begin(), order.end(), holds);
    std::shuffle(order.begin(), order.end(), random);
    std::uniform_real_distribution<double> turn(0.0, 2.0 * std::numbers::pi);
    for (std::size_t i = 0; i < kHalf; i += 2) {
      std::vector<Complex> w;
      for (std::size_t b = 0; b < kBands; ++b) w.push_back(std::polar(1.0, turn(random)));
      const double s = i % 4 == 0 ? 1.0 : -1.0;
      const std::int64_t at = asks + static_cast<std::int64_t>(i);
      write(at, order[i], w, s);
      for (Complex& x : w) x = -x;
      write(at + 1, order[i + 1], w, -s);
      if (asks < holds) continue;  // keys behind their queries are found by nobody
      targets[static_cast<std::size_t>(at)] = order[i];
      targets[static_cast<std::size_t>(at + 1)] = order[i + 1];
    }
  }
};

MadeHead::MadeHead(RopeLayout pairs) : layout{pairs, 17, 16} {
  for (std::size_t b = 0; b < kBands; ++b) {
    const auto i = static_cast<double>(b);
    u.push_back(std::polar(0.3 + 0.05 * i, 0.7 * i));
    kappa.push_back(std::polar(2.0 + i * i, 0.3 * i));
    amplitude.push_back(1.0 + 0.25 * i);
    phase.push_back(0.06 * i - 0.2);
  }
  queries.resize(static_cast<std::size_t>(kTokens * layout.head_dim));
  keys = queries;
  targets.assign(static_cast<std::size_t>(kTokens), -1);
  std::mt19937 random(7);
  write_half(kSinkTokens + kHalf, kSinkTokens, random);
  write_half(kSinkTokens, kSinkTokens + kHalf, random);
}

struct Study {
  MeanBands background;
  MatchedStudy matched;
};
Study study(const MadeHead& head, const std::vector<std::int64_t>& distances) {
  const BandTurns turns = band_turns(head.bands, kTokens);
  const UnturnedRows queries = unturned_rows(head.queries.data(), head.layout, turns);
  const UnturnedRows keys = unturned_rows(head.keys.data(), head.layout, turns);
  return {background_bands(queries, keys, kScale),
          matched_study(queries, keys, kScale, head.targets, head.bands, distances)};
}

class HeadOfKnownBands : public testing::TestWithParam<RopeLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, HeadOfKnownBands,
                         testing::Values(RopeLayout::kHalfSplit, RopeLayout::kAdjacentPairs));

// Means of 8,000 to 16,000 rows whose floats have a relative error of 6e-8, products up to 50.
constexpr double kRounding = 1e-5;

TEST_P(HeadOfKnownBands, AmplitudesAndPhasesAreFound) {
  const MadeHead head(GetParam());
  const Study found = study(head, {64});
  EXPECT_EQ(found.matched.n_pairs, kHalf);
  for (std::size_t b = 0; b < kBands; ++b) {
    const Complex mean = head.u[b] * std::conj(head.kappa[b]);
    EXPECT_NEAR(found.background.amplitude[b], kScale * std::abs(mean), kRounding);
    EXPECT_NEAR(found.background.phase[b], std::arg(mean), kRounding);
    EXPECT_NEAR(found.matched.excess.amplitude[b], kScale * head.amplitude[b], kRounding);
    EXPECT_NEAR(found.matched.excess.phase[b], head.phase[b], kRounding);
  }
  EXPECT_NEAR(found.background.constant, kScale * 2.0, kRounding);
  EXPECT_NEAR(found.matched.excess.constant, kScale * 0.5, kRounding);
}

TEST_P(HeadOfKnownBands, TargetsStandOutAtAnyDistanceAsTheyWereMadeTo) {
  const MadeHead head(GetParam());
  const std::vector<std::int64_t> distances{1, 64, 512, 1024};
  const Study found = study(head, distances);
  ASSERT_EQ(found.matched.at.size(), distances.size());
  for (std::size_t i = 0; i < distances.size(); ++i) {
    const TargetLogits& at = found.matched.at[i];
    const auto d = static_cast<double>(distances[i]);
    EXPECT_EQ(at.distance, distances[i]);
    EXPECT_NEAR(at.background, head.background(d), kRounding);
    EXPECT_NEAR(at.matched, head.background(d) + head.excess(d), kRounding);
    EXPECT_NEAR(found.matched.matched.logit(head.bands, d), at.matched, 1e-9);
    // Deviations of 8,000 samples have a standard error of 0.8 %.
    EXPECT_NEAR(at.sigma / head.sigma(), 1.0, 0.03);
    EXPECT_NEAR(at.target_sigma / head.target_sigma(), 1.0, 0.03);
    EXPECT_NEAR(at.z(), head.z(d), 0.03 * std::abs(head.z(d)) + 1e-4);
  }
  EXPECT_NEAR(mean_deviation(found.matched) / std::hypot(head.sigma(), head.target_sigma()), 1.0,
              0.03);
}

// The capacity at a distance, played out: targets against as many keys of other queries.
TEST(HeadBands, CapacityIsHowManyOthersATargetBeats) {
  const MadeHead head(RopeLayout::kHalfSplit);
  const double distance = 8.0;
  const Study found = study(head, {8});
  const double capacity = argmax_capacity(found.matched.at[0].z(), 0.05);
  const auto n_others = static_cast<int>(capacity);
  ASSERT_GE(n_others, 2);
  std::mt19937 random(11);
  std::uniform_real_distribution<double> turn(0.0, 2.0 * std::numbers::pi);
  constexpr int kTrials = 20000;
  int won = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<Complex> w;
    for (std::size_t b = 0; b < kBands; ++b) w.push_back(std::polar(1.0, turn(random)));
    const double s = random() % 2 == 0 ? 1.0 : -1.0;
    const auto logit = [&](const std::vector<Complex>& of_key, double unturned) {
      double sum = (1.0 + s) * 0.5 * unturned;
      for (std::size_t b = 0; b < kBands; ++b) {
        const Complex key = std::polar(head.amplitude[b], -head.phase[b]) * of_key[b];
        sum +=
            ((head.u[b] + w[b]) * std::conj(key) * std::polar(1.0, head.bands.theta[b] * distance))
                .real();
      }
      return sum;
    };
    const double target = logit(w, s);
    bool largest = true;
    for (int i = 0; i < n_others && largest; ++i) {
      std::vector<Complex> other;
      for (std::size_t b = 0; b < kBands; ++b) other.push_back(std::polar(1.0, turn(random)));
      largest = logit(other, random() % 2 == 0 ? 1.0 : -1.0) < target;
    }
    won += largest ? 1 : 0;
  }
  // A bound from below for normal logits; those of eight bands have lighter tails.
  EXPECT_GE(won, 0.945 * kTrials) << n_others;
  EXPECT_LE(won, 0.99 * kTrials) << n_others;
}

TEST_P(HeadOfKnownBands, RangeAndAliasFollow) {
  const MadeHead head(GetParam());
  const Study found = study(head, {64});
  const BandCurves curves(head.bands, 20000);
  const MeanBands& excess = found.matched.excess;
  const double level = 0.55 * head.excess(0.0);
  const RetrievalRange range = curves.range(excess.logits(), level - excess.constant);
  std::int64_t hard = 0;
  while (head.excess(static_cast<double>(hard + 1)) >= level) ++hard;
  EXPECT_GT(hard, 4);
  EXPECT_EQ(range.hard, hard);
  EXPECT_GT(range.guaranteed, 0.0);
  EXPECT_LE(range.guaranteed, static_cast<double>(hard) + 1.0);

  std::vector<double> shares, weights;
  double whole = 0.0;
  for (const double a : found.background.amplitude) whole += a;
  for (const double a : found.background.amplitude) shares.push_back(a / whole);
  for (std::size_t b = 0; b < kBands; ++b)
    weights.push_back(std::abs(head.u[b]) * std::abs(head.kappa[b]));
  std::int64_t alias = -1;
  double best = 0.0;
  bool left = false;
  for (std::int64_t d = 0; d <= 20000; ++d) {
    double g = 0.0;
    for (std::size_t b = 0; b < kBands; ++b)
      g += weights[b] * std::cos(head.bands.theta[b] * static_cast<double>(d));
    left = left || g <= 0.0;
    if (left && (alias < 0 || g > best)) {
      alias = d;
      best = g;
    }
  }
  const KernelAlias measured = curves.alias(shares, 20000);
  EXPECT_EQ(measured.distance, alias);
  EXPECT_NEAR(measured.value, best / std::accumulate(weights.begin(), weights.end(), 0.0), 1e-5);
}

TEST(HeadBands, WithoutPairsThereIsNothingToFind) {
  MadeHead head(RopeLayout::kHalfSplit);
  for (std::int64_t& target : head.targets) target = std::min(target, kSinkTokens - 1);
  const Study found = study(head, {64});
  EXPECT_EQ(found.matched.n_pairs, 0);
  EXPECT_TRUE(found.matched.at.empty());
  EXPECT_FALSE(found.background.amplitude.empty());
}

}  // namespace
}  // namespace volvelle
