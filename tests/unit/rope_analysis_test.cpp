// Scores of rotated rows, address kernels, ranges and capacities against values of independent
// programs: kernels to six digits. Aliases are in rope_alias_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <numeric>
#include <random>

#include "bounds/edit_bound.hpp"
#include "rope/address_kernel.hpp"
#include "rope/retrieval_range.hpp"

namespace volvelle {
namespace {

BandFrequencies bands(const RotaryConfig& config,
                      AnglePrecision precision = AnglePrecision::kIdeal) {
  return band_frequencies(config, precision).value();
}
BandFrequencies plain(int d, double base) { return bands({.rotated_dims = d, .base = base}); }
RotaryConfig llama31() {
  return {.rotated_dims = 128,
          .base = 5e5,
          .scaling = BandScaling::kLlama3,
          .factor = 8,
          .original_context = 8192};
}
TEST(RopeScores, DotProductsOfRotatedRowsAreSumsOverBands) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const BandFrequencies b = plain(64, 1e5);
  std::vector<std::complex<double>> q, k;
  for (int i = 0; i < 32; ++i) {
    q.emplace_back(normal(random), normal(random));
    k.emplace_back(normal(random), normal(random));
  }
  const std::uint64_t t = 9001, j = 17;
  double dot = 0.0, sum = 0.0;
  for (std::size_t i = 0; i < 32; ++i) {
    const auto turned_q = q[i] * std::polar(1.0, b.angle(i, t));
    const auto turned_k = k[i] * std::polar(1.0, b.angle(i, j));
    dot += turned_q.real() * turned_k.real() + turned_q.imag() * turned_k.imag();
    sum += (std::conj(q[i]) * k[i] * std::polar(1.0, -b.angle(i, t - j))).real();
  }
  EXPECT_NEAR(dot, sum, 1e-9);
}

/// Rows of two layouts: x cos + rotate_half(x) sin, as with halves, and pairs of neighbours turned
/// as complex numbers.
std::vector<double> turned_halves(const BandFrequencies& b, std::span<const double> x,
                                  std::uint64_t position) {
  const std::size_t m = b.size();
  std::vector<double> out(2 * m);
  for (std::size_t i = 0; i < 2 * m; ++i) {
    const double other = i < m ? -x[i + m] : x[i - m];
    const double angle = b.angle(i % m, position);
    out[i] = x[i] * std::cos(angle) + other * std::sin(angle);
  }
  return out;
}
std::vector<double> turned_pairs(const BandFrequencies& b, std::span<const double> x,
                                 std::uint64_t position) {
  std::vector<double> out;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const auto z =
        std::complex<double>(x[2 * i], x[2 * i + 1]) * std::polar(1.0, b.angle(i, position));
    out.push_back(z.real());
    out.push_back(z.imag());
  }
  return out;
}

TEST(RopeScores, NeighboursAreAPermutationOfHalves) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (const int dim : {2, 64, 128}) {
    const BandFrequencies b = plain(dim, 5e5);
    const BandLayout halves{RopeLayout::kHalfSplit, dim, dim};
    const BandLayout pairs{RopeLayout::kAdjacentPairs, dim, dim};
    for (int trial = 0; trial < 50; ++trial) {
      const std::uint64_t t = random() % 1000000, j = random() % 1000000;
      const auto n = static_cast<std::size_t>(dim);
      std::vector<double> q(n), k(n), q_pairs(n), k_pairs(n);
      for (std::size_t i = 0; i < n; ++i) q[i] = normal(random), k[i] = normal(random);
      const auto permuted = [&](std::span<const double> x) {
        std::vector<double> out(n);
        for (int band = 0; band < halves.n_bands(); ++band) {
          out[static_cast<std::size_t>(pairs.first(band))] =
              x[static_cast<std::size_t>(halves.first(band))];
          out[static_cast<std::size_t>(pairs.second(band))] =
              x[static_cast<std::size_t>(halves.second(band))];
        }
        return out;
      };
      const auto a = turned_halves(b, q, t), c = turned_halves(b, k, j);
      const auto a_pairs = turned_pairs(b, permuted(q), t),
                 c_pairs = turned_pairs(b, permuted(k), j);
      const auto moved = permuted(a);
      for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(a_pairs[i], moved[i], 1e-14);
      const double score = std::inner_product(a.begin(), a.end(), c.begin(), 0.0);
      EXPECT_NEAR(score, std::inner_product(a_pairs.begin(), a_pairs.end(), c_pairs.begin(), 0.0),
                  1e-12);
      // The other pairing has another score.
      if (dim > 2) {
        const auto wrong_q = turned_pairs(b, q, t), wrong_k = turned_pairs(b, k, j);
        EXPECT_GT(std::abs(score - std::inner_product(wrong_q.begin(), wrong_q.end(),
                                                      wrong_k.begin(), 0.0)),
                  1e-9);
      }
    }
  }
}

TEST(AddressKernel, ValuesToSixDigits) {
  const std::vector<std::pair<BandFrequencies, std::vector<double>>> expected = {
      {plain(64, 1e4), {.966151, .657863, .558583, .278936, .049351, .132828}},
      {plain(64, 5e5), {.973649, .753586, .645038, .448155, .212883, .178187}},
      {plain(64, 1e6), {.974519, .764728, .629551, .468640, .227180, .067787}},
      {plain(128, 1e4), {.970214, .669063, .477241, .159027, -.027894, .056119}},
      {plain(128, 1e5), {.975382, .732853, .522361, .351633, .038034, .025724}},
      {plain(128, 5e5), {.977909, .764205, .610989, .492264, .186995, .001479}},
      {plain(128, 1e6), {.978814, .775471, .586301, .491121, .311534, .036100}},
      {plain(128, 1e7), {.981255, .805988, .624347, .584082, .435508, .284215}},
      {bands(llama31()), {.977909, .764215, .611970, .559918, .345780, .170217}}};
  for (const auto& [b, values] : expected) {
    std::uint64_t distance = 1;
    for (const double value : values) {
      EXPECT_NEAR(address_kernel(b, {}, distance), value, 1e-6) << distance;
      distance *= 10;
    }
  }
  // With weights: a key of one band comes back after its wavelength.
  std::vector<double> one(32, 0.0);
  one[20] = 1.0;
  const BandFrequencies b = plain(64, 1e4);
  EXPECT_NEAR(address_kernel(b, one, static_cast<std::uint64_t>(std::llround(b.wavelength(20)))),
              1.0, 1e-4);
}

TEST(RetrievalRange, LawSearchAndProofAgree) {
  struct Expected {
    int d;
    double base, tau, law, smoothed;
  };
  for (const Expected& e : {Expected{64, 1e4, .75, 4.9, 5},
                            {64, 1e4, .5, 48.6, 51},
                            {64, 1e4, .25, 486, 510},
                            {128, 1e4, .75, 5.2, 6},
                            {128, 1e4, .5, 52.2, 52},
                            {128, 1e4, .25, 522, 523},
                            {128, 5e5, .75, 13.5, 14},
                            {128, 5e5, .5, 358, 369},
                            {128, 5e5, .25, 9529, 9817},
                            {128, 1e6, .75, 15.9, 17},
                            {128, 1e6, .5, 504, 515},
                            {128, 1e6, .25, 15938, 16247},
                            {128, 1e7, .75, 27.8, 28},
                            {128, 1e7, .5, 1565, 1614},
                            {128, 1e7, .25, 88030, 90795}}) {
    const BandFrequencies b = plain(e.d, e.base);
    const std::vector<double> flat(b.size(), 1.0 / static_cast<double>(b.size()));
    const RetrievalRange range = retrieval_range(b, {flat}, e.tau, 100000);
    EXPECT_NEAR(range.law, e.law, 0.01 * e.law);
    EXPECT_NEAR(range.smoothed, e.smoothed, 0.02 * e.smoothed + 1);
    EXPECT_NEAR(range.law / range.smoothed, 1.0, 0.12);
    EXPECT_EQ(range.hard, first_below(kernel_table(b, {}, 100000), e.tau) - 1);
    EXPECT_LE(range.guaranteed, static_cast<double>(range.hard) + 1);
  }
}

TEST(RetrievalRange, ProfilesOfRealHeads) {
  // Amplitudes over x from fast to slow, with law, smoothed crossing and guarantee of an
  // independent program at thresholds of .75, .5 and .25, rounded as it prints them.
  struct Expected {
    int d;
    double base;
    double (*profile)(double x);
    double law[3], smoothed[3], guaranteed[3];
    double accuracy;  // of the law
  };
  const auto slow = [](double x) { return x * x; };
  const auto fast = [](double x) { return 1.0 - x + 0.1; };
  const auto bump = [](double x) { return std::exp(-std::pow((x - 0.6) / 0.15, 2)); };
  for (const Expected& e :
       {Expected{64, 1e4, slow, {161, 725, 2093}, {178, 794, 2325}, {99.6, 332.6, 777.5}, .12},
        {64, 1e4, fast, {2, 9, 73}, {2, 9, 70}, {2.0, 4.1, 8.7}, .12},
        {64, 1e4, bump, {63, 122, 237}, {82, 155, 266}, {75.6, 130.3, 191.6}, .25},
        {128, 5e5, slow, {1970, 16898, 76293}, {2147, 18234, 81111}, {742.6, 4128.6, 13656}, .12},
        {128, 5e5, fast, {3, 33, 632}, {3, 32, 583}, {2.8, 7.5, 22.2}, .12},
        {128, 5e5, bump, {520, 1331, 3400}, {638, 1546, 3461}, {526.4, 1079.3, 1829.4}, .25}}) {
    const BandFrequencies b = plain(e.d, e.base);
    std::vector<double> amplitude;
    for (std::size_t i = 0; i < b.size(); ++i)
      amplitude.push_back(
          e.profile((static_cast<double>(i) + 0.5) / static_cast<double>(b.size())));
    const double sum = std::accumulate(amplitude.begin(), amplitude.end(), 0.0);
    for (double& a : amplitude) a /= sum;
    const double thresholds[] = {.75, .5, .25};
    for (std::size_t i = 0; i < 3; ++i) {
      const RetrievalRange range = retrieval_range(b, {amplitude}, thresholds[i], 100000);
      EXPECT_NEAR(range.law, e.law[i], 0.501);
      EXPECT_NEAR(range.smoothed, e.smoothed[i], 0.501);
      EXPECT_NEAR(range.guaranteed, e.guaranteed[i], 0.051);
      if (range.smoothed > 5.0) {  // below, one step of the search is more than that
        EXPECT_NEAR(range.law / range.smoothed, 1.0, e.accuracy);
      }
    }
  }
}

/// The first D, in steps of half a percent, at which the average of g over all integers in
/// [D / 1.6, 1.6 D], weighted by 1 / D, is below 0.
double zero_of_average(const BandFrequencies& b, std::int64_t last) {
  const std::vector<double> table = kernel_table(b, {}, last);
  std::vector<double> sums(table.size() + 1, 0.0);
  for (std::size_t d = 1; d < table.size(); ++d)
    sums[d + 1] = sums[d] + table[d] / static_cast<double>(d);
  for (double d = 2.0; d * 1.6 < static_cast<double>(last); d *= 1.005) {
    const auto from = static_cast<std::size_t>(std::max(1LL, std::llround(d / 1.6)));
    const auto to = static_cast<std::size_t>(std::llround(d * 1.6));
    if (sums[to + 1] < sums[from]) return d;
  }
  return 0.0;
}

// The integral that a flat head's sum approximates crosses at 0.616505 / lo, the first zero of Ci,
// where the law, a logarithm, has e^-gamma / lo.
TEST(RetrievalRange, FlatHeadsCrossZeroAtTheFirstZeroOfCi) {
  struct Expected {
    double base, law, smoothed;
    std::int64_t last;
  };
  for (const Expected& e : {Expected{5e5, 278217, 274744, 450000}, {1e6, 553429, 552303, 900000}}) {
    const BandFrequencies b = plain(128, e.base);
    const std::vector<double> flat(64, 1.0 / 64);
    const RetrievalRange range = retrieval_range(b, {flat}, 0.0, 700000);
    EXPECT_NEAR(range.law * std::exp(std::numbers::egamma) * 0.616505, e.law, 1.0);
    EXPECT_NEAR(zero_of_average(b, e.last), e.smoothed, 0.501);
    // Its 600 samples leave a ripple of sqrt(n_bands / 4) / n_bands / sqrt(600) = 0.0026, over a
    // slope of 1 / ln(hi / lo), about 1 / 13, that is 3.4 %; twice that.
    EXPECT_NEAR(range.smoothed / e.smoothed, 1.0, 0.07);
  }
}

TEST(RetrievalRange, TheGuaranteeHoldsForRandomHeads) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform;
  int useful = 0;
  for (int trial = 0; trial < 180; ++trial) {
    const BandFrequencies b = plain(trial % 2 == 0 ? 64 : 128, trial % 3 == 0 ? 1e4 : 5e5);
    std::vector<double> amplitude, phase;
    double sum = 0.0;
    const double slow = 3.0 * uniform(random);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const double x = static_cast<double>(i) / static_cast<double>(b.size());
      amplitude.push_back(uniform(random) * std::pow(x, slow));
      sum += amplitude.back();
      phase.push_back(2.0 * uniform(random) - 1.0);
    }
    for (double& a : amplitude) a /= sum;
    const LogitBands logits{amplitude, phase};
    const double threshold = 0.1 + 0.3 * uniform(random);
    const RetrievalRange range = retrieval_range(b, logits, threshold, 20);
    useful += range.guaranteed >= 1.0 ? 1 : 0;
    const auto last = std::min(5000.0, range.guaranteed);
    for (double d = 0.0; d <= last; d += last / 500 + 1e-9)
      ASSERT_GE(logit_at(b, logits, d), threshold - 1e-12) << trial << " " << d;
  }
  EXPECT_GT(useful, 60);
}

TEST(RetrievalRange, RemovingSlowBandsDividesItByThePowerOfTheBase) {
  for (const auto& [base, expected] :
       {std::pair{1e4, 3.17}, {5e5, 5.22}, {1e6, 5.59}, {1e7, 7.46}}) {
    const BandFrequencies b = plain(128, base);
    std::vector<double> whole(64, 1.0 / 64);
    std::vector<double> without_slow = whole, without_fast = whole;
    std::fill(without_slow.end() - 8, without_slow.end(), 0.0);
    std::fill(without_fast.begin(), without_fast.begin() + 8, 0.0);
    const auto smoothed = [&](const std::vector<double>& amplitude) {
      return retrieval_range(b, {amplitude}, 0.25, 200000).smoothed;
    };
    const double ratio = smoothed(whole) / smoothed(without_slow);
    EXPECT_NEAR(ratio, expected, 0.03 * expected);
    EXPECT_NEAR(ratio, std::pow(base, 0.125), 0.03 * ratio);
    EXPECT_NEAR(smoothed(whole) / smoothed(without_fast), 1.0, 0.02);
  }
}

TEST(Capacity, TableInverseAndSoftmax) {
  const std::vector<std::array<double, 3>> table = {{1, 4.01, .297},       {2, 30.1, 2.23},
                                                    {3, 513, 38.0},        {4, 2.189e4, 1620},
                                                    {5, 2.418e6, 1.789e5}, {6, 7.026e8, 5.199e7}};
  for (const auto& [z, half, rare] : table) {
    EXPECT_NEAR(argmax_capacity(z, 0.5) / half, 1.0, 2e-3);
    EXPECT_NEAR(argmax_capacity(z, 0.05) / rare, 1.0, 2e-3);
    EXPECT_GE(argmax_capacity(z, 0.05), 0.05 * (2 * std::exp(z * z / 2) - 1));
    EXPECT_NEAR(capacity_quantile(argmax_capacity(z, 0.05), 0.05), z, 1e-6);
  }
  EXPECT_NEAR(ln_softmax_capacity(6.0, 1.0), 5.5, 1e-12);
  EXPECT_NEAR(ln_softmax_capacity(2.0, 2.0), 0.5, 1e-12);
  // Configuration alone, d = 128, base 1e4: about 2700 others at 300 positions, 73 at 600, 40 at
  // 900.
  const BandFrequencies b = plain(128, 1e4);
  const auto at = [&](std::uint64_t d) {
    return address_capacity(address_kernel(b, {}, d), 64, 0.5);
  };
  EXPECT_NEAR(at(300), 2700, 300);
  EXPECT_NEAR(at(600), 73, 8);
  EXPECT_NEAR(at(900), 40, 5);
}

}  // namespace
}  // namespace volvelle
