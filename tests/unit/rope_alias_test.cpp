// Integers that follow from a rotary configuration alone, against the tables of an independent
// program: where the address kernel first falls below a level, where it comes back, and where
// bands and groups of slow bands do. VOLVELLE_FULL=1 searches up to 2^20 and in frequencies of both
// precisions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>

#include "rope/address_kernel.hpp"
#include "rope/wide.hpp"
#include "volvelle/base/half.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kShort = 4096;
constexpr std::int64_t kMiddle = 32768;
constexpr std::int64_t kLong = 131072;
constexpr std::int64_t kLongest = std::int64_t{1} << 20;

BandFrequencies bands(const RotaryConfig& config,
                      AnglePrecision precision = AnglePrecision::kIdeal) {
  return band_frequencies(config, precision).value();
}
RotaryConfig plain(int d, double base) { return {.rotated_dims = d, .base = base}; }
RotaryConfig scaled(int d, double base, BandScaling scaling, double factor,
                    std::int64_t context = 0) {
  return {.rotated_dims = d,
          .base = base,
          .scaling = scaling,
          .factor = factor,
          .original_context = context};
}
RotaryConfig llama(int d, double factor) {
  return scaled(d, 5e5, BandScaling::kLlama3, factor, 8192);
}
RotaryConfig yarn() { return scaled(128, 1e6, BandScaling::kYarn, 4, 32768); }

/// The strongest alias up to a length.
struct PublishedAlias {
  std::int64_t length, distance;
  double value;
};
struct Published {
  std::string name;
  RotaryConfig config;
  std::vector<std::int64_t> crossings;  // of .75, .5, .25, 0
  std::vector<PublishedAlias> aliases;
};

const std::vector<Published> kPublished = {
    {"64 dims, 1e4",
     plain(64, 1e4),
     {4, 28, 172, 725},
     {{kShort, 772, .404717},
      {kMiddle, 772, .404717},
      {kLong, 102806, .444960},
      {kLongest, 847603, .562408}}},
    {"64 dims, 1e5",
     plain(64, 1e5),
     {},
     {{kShort, 3908, NAN},
      {kMiddle, 4141, .514728},
      {kLong, 4141, .514728},
      {kLongest, 913651, .584496}}},
    {"64 dims, 5e5",
     plain(64, 5e5),
     {14, 78, 914, 9937},
     {{kMiddle, 11856, .495440}, {kLong, 11856, .495440}, {kLongest, 11856, .495440}}},
    {"64 dims, 1e6",
     plain(64, 1e6),
     {14, 122, 720, 6235},
     {{kMiddle, 7942, .570191}, {kLong, 7942, .570191}, {kLongest, 7942, .570191}}},
    {"64 dims, 1e7", plain(64, 1e7), {}, {{kLong, 60877, .625634}, {kLongest, 60877, .625634}}},
    {"128 dims, 1e4",
     plain(128, 1e4),
     {5, 46, 198, 1707},
     {{kShort, 1835, .262733},
      {kMiddle, 1835, .262733},
      {kLong, 102806, .279702},
      {kLongest, 978796, .377547}}},
    {"128 dims, 1e5",
     plain(128, 1e5),
     {9, 102, 1064, 7757},
     {{kMiddle, 8049, .327368}, {kLong, 8049, .327368}, {kLongest, 1030485, .338498}}},
    {"128 dims, 5e5",
     plain(128, 5e5),
     {14, 166, 2120, 18438},
     {{kMiddle, 28708, .416701}, {kLong, 28708, .416701}, {kLongest, 28708, .416701}}},
    {"128 dims, 1e6",
     plain(128, 1e6),
     {15, 197, 2529, 27115},
     {{kMiddle, 32007, .433893}, {kLong, 32007, .433893}, {kLongest, 32007, .433893}}},
    {"128 dims, 5e6",
     plain(128, 5e6),
     {21, 411, 5481, 82999},
     {{kLong, 88235, .458201}, {kLongest, 88235, .458201}}},
    {"128 dims, 1e7", plain(128, 1e7), {27, 449, 7272, 144660}, {{kLongest, 201703, .471026}}},
    {"Llama-3.1-8B",
     llama(128, 8),
     {14, 166, 9967, 85133},
     {{kLong, 101700, .461097}, {kLongest, 181727, .468766}}},
    {"Llama-3.2-1B",
     llama(64, 32),
     {14, 78, 2077, 110699},
     {{kLong, 130966, .702338}, {kLongest, 130966, .702338}}},
    {"Llama-3.2-3B", llama(128, 32), {}, {{kLongest, 258333, .552931}}},
    {"YaRN, factor 4",
     yarn(),
     {15, 198, 5073, 66234},
     {{kLong, 71296, .499216}, {kLongest, 71296, .499216}}},
    {"linear, factor 4",
     scaled(128, 1e4, BandScaling::kLinear, 4),
     {},
     {{kMiddle, 7338, .264914}, {kLong, 7338, .264914}, {kLongest, 982664, .307139}}},
    {"NTK, factor 4",
     scaled(128, 1e4, BandScaling::kNtk, 4),
     {},
     {{kMiddle, 4554, .328422}, {kLong, 4554, .328422}, {kLongest, 920733, .349207}}}};

/// All published integers that a table of g(0) to g(last) shows, exactly; values to six digits.
void expect_published(const Published& expected, std::int64_t last, AnglePrecision precision) {
  SCOPED_TRACE(expected.name);
  const BandFrequencies b = bands(expected.config, precision);
  const std::vector<double> table = kernel_table(b, {}, last);
  // Floats are up to 2^-24 of a frequency off, which moves a cosine by no more than its angle.
  const double drift = precision == AnglePrecision::kIdeal
                           ? 0.0
                           : 0x1p-24 * std::accumulate(b.theta.begin(), b.theta.end(), 0.0) /
                                 static_cast<double>(b.size());
  const double levels[] = {.75, .5, .25, 0.0};
  for (std::size_t i = 0; i < expected.crossings.size(); ++i) {
    ASSERT_LE(expected.crossings[i], last);
    EXPECT_EQ(first_below(table, levels[i]), expected.crossings[i]) << levels[i];
  }
  for (const auto& [length, distance, value] : expected.aliases) {
    if (length > last) continue;
    const KernelAlias alias =
        kernel_alias(std::span(table).first(static_cast<std::size_t>(length) + 1));
    EXPECT_EQ(alias.distance, distance) << length;
    if (!std::isnan(value)) {
      EXPECT_NEAR(alias.value, value, 1e-6 + drift * static_cast<double>(distance)) << length;
    }
    EXPECT_GE(alias.gap, 0.0);
  }
}

TEST(RopeAlias, CrossingsAndKernelAliasesArePublishedIntegers) {
  for (const Published& expected : kPublished)
    expect_published(expected, 150'000, AnglePrecision::kIdeal);
}

// The same integers in frequencies that are rounded to float, but for the near tie.
TEST(RopeAlias, FarAliasesAndThoseOfFloatFrequencies) {
  if (std::getenv("VOLVELLE_FULL") == nullptr)
    GTEST_SKIP() << "searches 2^20 distances; VOLVELLE_FULL=1 runs it";
  for (const Published& expected : kPublished) {
    expect_published(expected, kLongest, AnglePrecision::kIdeal);
    if (expected.name != "128 dims, 5e5")
      expect_published(expected, kLongest, AnglePrecision::kFloatFrequencies);
  }
}

/// Frequencies by float products from band to band, as engines make them: nearly all of them are
/// some units in the last place off.
BandFrequencies by_float_products(int d, float base) {
  BandFrequencies made;
  const float ratio = std::pow(base, -2.0f / static_cast<float>(d));
  float theta = 1.0f;
  for (int b = 0; b < d / 2; ++b, theta *= ratio) {
    made.theta.push_back(static_cast<double>(theta));
    made.turns.push_back(turns_of(static_cast<Wide>(theta)));
  }
  return made;
}

TEST(RopeAlias, TheRoundingOfFrequenciesDecidesANearTie) {
  const KernelAlias ideal = kernel_alias(kernel_table(bands(plain(128, 5e5)), {}, 40000));
  EXPECT_EQ(ideal.distance, 28708);
  EXPECT_EQ(ideal.runner_up, 23386);
  EXPECT_LT(ideal.gap, 1.1e-5);
  const KernelAlias rounded = kernel_alias(
      kernel_table(bands(plain(128, 5e5), AnglePrecision::kFloatFrequencies), {}, 40000));
  EXPECT_EQ(rounded.distance, 23386);
  EXPECT_EQ(rounded.runner_up, 28708);
  EXPECT_EQ(kernel_alias(kernel_table(by_float_products(128, 5e5f), {}, 40000)).distance, 28708);
}

TEST(RopeAlias, NoneBeforeTheKernelHasFallenToZero) {
  EXPECT_EQ(kernel_alias(kernel_table(bands(plain(128, 1e6)), {}, 100)).distance, -1);
}

TEST(RopeAlias, OfTheSlowestBand) {
  const std::vector<std::pair<RotaryConfig, std::int64_t>> all = {
      {plain(64, 1e4), 47117},
      {plain(64, 1e5), 438460},
      {plain(64, 5e5), 2084765},
      {plain(64, 1e6), 4080185},
      {plain(64, 1e7), 37969062},
      {plain(128, 1e4), 54410},
      {plain(128, 1e5), 524874},
      {plain(128, 5e5), 2559196},
      {plain(128, 1e6), 5063256},
      {plain(128, 5e6), 24687577},
      {plain(128, 1e7), 48843285},
      {llama(128, 8), 20473564},
      {llama(64, 32), 66712473},
      {llama(128, 32), 81894257},
      {yarn(), 20253023},
      {scaled(128, 1e4, BandScaling::kLinear, 4), 217641},
      {scaled(128, 1e4, BandScaling::kNtk, 4), 217641}};
  for (const auto& [config, expected] : all)
    EXPECT_EQ(band_alias(bands(config)), expected) << config.rotated_dims << ' ' << config.base;
}

TEST(RopeAlias, JointReturnsOfSlowBands) {
  struct Expected {
    int d;
    double base, tolerance;
    std::vector<std::int64_t> returns;  // of the slowest 1, 2, 3, 4 bands; 0: none up to 1e9
  };
  for (const Expected& e : {Expected{64, 1e4, .1, {46368, 140770, 423514, 1271424}},
                            {64, 1e5, .1, {431482, 3062241, 98213836, 0}},
                            {64, 5e5, .1, {2051585, 4136350, 300191264, 0}},
                            {64, 1e6, .1, {4015247, 52977469, 0, 0}},
                            {128, 1e4, .1, {53545, 706466, 4569623, 88580170}},
                            {128, 5e5, .1, {2518465, 56261571, 742143080, 0}},
                            {128, 1e6, .1, {4982672, 126500811, 0, 0}},
                            {64, 1e4, .5, {43368, 138521, 421828, 1270047}},
                            {128, 1e4, .5, {50081, 50081, 326072, 2118450}},
                            {128, 5e5, .5, {2355542, 10257924, 10257924, 156220040}}}) {
    const BandFrequencies b = bands(plain(e.d, e.base));
    for (std::size_t n = 0; n < e.returns.size(); ++n)
      EXPECT_EQ(joint_return(b, static_cast<int>(n) + 1, e.tolerance, 1'000'000'000), e.returns[n])
          << e.d << ' ' << e.base << ' ' << e.tolerance << ' ' << n + 1;
  }
}

/// The first whole number that the type stores as the one before.
template <class Rounded>
std::int64_t first_lost(Rounded rounded) {
  std::int64_t position = 1;
  while (rounded(static_cast<float>(position)) != rounded(static_cast<float>(position - 1)))
    ++position;
  return position;
}

TEST(RopeAlias, PositionsThatNumberTypesCanNotTellApart) {
  EXPECT_EQ(first_indistinct_position("bf16"), 257);
  EXPECT_EQ(first_lost([](float x) { return bf16_to_f32(f32_to_bf16(x)); }), 257);
  EXPECT_EQ(first_indistinct_position("f16"), 2049);
  EXPECT_EQ(first_lost([](float x) { return f16_to_f32(f32_to_f16(x)); }), 2049);
  EXPECT_EQ(first_indistinct_position("f32"), 16777217);
  EXPECT_EQ(static_cast<float>(std::int64_t{16777217}), 16777216.0f);
  EXPECT_NE(static_cast<float>(std::int64_t{16777216}), 16777215.0f);
  EXPECT_EQ(first_indistinct_position("f64"), 0);
}

}  // namespace
}  // namespace volvelle
