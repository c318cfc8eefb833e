// Address kernels, aliases, ranges and capacities against values of independent programs: integers
// exactly, kernels to six digits.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <map>
#include <numeric>
#include <random>

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
RotaryConfig yarn() {
  return {.rotated_dims = 128,
          .base = 1e6,
          .scaling = BandScaling::kYarn,
          .factor = 4,
          .original_context = 32768};
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

TEST(AddressKernel, FirstCrossingsAndAliases) {
  struct Expected {
    BandFrequencies b;
    std::vector<std::int64_t> crossings;                         // of .75, .5, .25, 0
    std::vector<std::pair<std::int64_t, std::int64_t>> aliases;  // table length, distance
    double value;                                                // at the first alias
  };
  const std::vector<Expected> all = {
      {plain(64, 1e4), {4, 28, 172, 725}, {{4096, 772}, {32768, 772}, {131072, 102806}}, .404717},
      {plain(64, 1e5), {}, {{4096, 3908}, {131072, 4141}}, 0.0},
      {plain(64, 5e5), {14, 78, 914, 9937}, {{131072, 11856}}, .495440},
      {plain(128, 1e4), {5, 46, 198, 1707}, {{4096, 1835}, {131072, 102806}}, .262733},
      {plain(128, 1e5), {9, 102, 1064, 7757}, {{131072, 8049}}, .327368},
      {plain(128, 1e6), {15, 197, 2529, 27115}, {{131072, 32007}}, .433893},
      {bands(llama31()), {14, 166, 9967, 85133}, {{131072, 101700}}, .461097},
      {bands(yarn()), {15, 198, 5073, 66234}, {{131072, 71296}}, .499216},
      {bands({.rotated_dims = 128, .base = 1e4, .scaling = BandScaling::kLinear, .factor = 4}),
       {},
       {{131072, 7338}},
       .264914},
      {bands({.rotated_dims = 128, .base = 1e4, .scaling = BandScaling::kNtk, .factor = 4}),
       {},
       {{131072, 4554}},
       .328422}};
  for (const Expected& e : all) {
    const std::vector<double> table = kernel_table(e.b, {}, 131072);
    if (!e.crossings.empty()) {
      EXPECT_EQ(first_below(table, .75), e.crossings[0]);
      EXPECT_EQ(first_below(table, .5), e.crossings[1]);
      EXPECT_EQ(first_below(table, .25), e.crossings[2]);
      EXPECT_EQ(first_below(table, 0), e.crossings[3]);
    }
    for (std::size_t i = 0; i < e.aliases.size(); ++i) {
      const auto& [length, distance] = e.aliases[i];
      const KernelAlias alias =
          kernel_alias(std::span(table).first(static_cast<std::size_t>(length + 1)));
      EXPECT_EQ(alias.distance, distance);
      if (i == 0 && e.value > 0.0) {
        EXPECT_NEAR(alias.value, e.value, 1e-6);
      }
      EXPECT_GE(alias.gap, 0.0);
    }
  }
  // A near tie, which the rounding of the frequencies decides.
  const KernelAlias ideal = kernel_alias(kernel_table(plain(128, 5e5), {}, 40000));
  EXPECT_EQ(ideal.distance, 28708);
  EXPECT_EQ(ideal.runner_up, 23386);
  EXPECT_LT(ideal.gap, 1.1e-5);
  const KernelAlias rounded = kernel_alias(kernel_table(
      bands({.rotated_dims = 128, .base = 5e5}, AnglePrecision::kFloatFrequencies), {}, 40000));
  EXPECT_EQ(rounded.distance, 23386);
  EXPECT_EQ(kernel_alias(kernel_table(plain(128, 1e6), {}, 100)).distance, -1);
}

TEST(Aliases, OfSingleBandsOfSeveralAndOfTypes) {
  EXPECT_EQ(band_alias(plain(64, 1e4)), 47117);
  EXPECT_EQ(band_alias(plain(64, 1e7)), 37969062);
  EXPECT_EQ(band_alias(plain(128, 5e6)), 24687577);
  EXPECT_EQ(band_alias(bands(llama31())), 20473564);
  EXPECT_EQ(band_alias(bands(yarn())), 20253023);
  EXPECT_EQ(band_alias(bands({.rotated_dims = 64,
                              .base = 5e5,
                              .scaling = BandScaling::kLlama3,
                              .factor = 32,
                              .original_context = 8192})),
            66712473);
  const std::map<std::pair<int, double>, std::vector<std::int64_t>> near = {
      {{64, 1e4}, {46368, 140770, 423514, 1271424}},
      {{64, 1e5}, {431482, 3062241, 98213836}},
      {{128, 1e4}, {53545, 706466, 4569623, 88580170}},
      {{128, 1e6}, {4982672, 126500811}}};
  for (const auto& [config, expected] : near) {
    const BandFrequencies b = plain(config.first, config.second);
    for (std::size_t n = 0; n < expected.size(); ++n)
      EXPECT_EQ(joint_return(b, static_cast<int>(n) + 1, 0.1, 200'000'000), expected[n]);
  }
  EXPECT_EQ(joint_return(plain(64, 1e4), 4, 0.5, 200'000'000), 1270047);
  EXPECT_EQ(joint_return(plain(128, 1e4), 2, 0.5, 200'000'000), 50081);
  EXPECT_EQ(joint_return(plain(64, 1e6), 3, 0.1, 1'000'000), 0);
  EXPECT_EQ(first_indistinct_position("bf16"), 257);
  EXPECT_EQ(first_indistinct_position("f32"), 16777217);
}

TEST(RetrievalRange, LawSearchAndProofAgree) {
  struct Expected {
    int d;
    double base, tau, law, smoothed;
  };
  for (const Expected& e : {Expected{64, 1e4, .75, 4.9, 5},
                            {64, 1e4, .5, 48.6, 51},
                            {64, 1e4, .25, 486, 510},
                            {128, 1e4, .5, 52.2, 52},
                            {128, 5e5, .75, 13.5, 14},
                            {128, 5e5, .5, 358, 369},
                            {128, 5e5, .25, 9529, 9817},
                            {128, 1e6, .5, 504, 515},
                            {128, 1e7, .5, 1565, 1614}}) {
    const BandFrequencies b = plain(e.d, e.base);
    const std::vector<double> flat(b.size(), 1.0 / static_cast<double>(b.size()));
    const RetrievalRange range = retrieval_range(b, {flat}, e.tau, 40000);
    EXPECT_NEAR(range.law, e.law, 0.01 * e.law);
    EXPECT_NEAR(range.smoothed, e.smoothed, 0.02 * e.smoothed + 1);
    EXPECT_NEAR(range.law / range.smoothed, 1.0, 0.12);
    EXPECT_EQ(range.hard, first_below(kernel_table(b, {}, 40000), e.tau) - 1);
    EXPECT_LE(range.guaranteed, static_cast<double>(range.hard) + 1);
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
       {std::pair{1e4, 3.17}, {1e6, 5.59}}) {
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
