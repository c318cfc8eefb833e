// Frequencies against values that an independent program computed with 113 bits, for every scaling;
// phases against plain arithmetic.
#include "rope/frequencies.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace volvelle {
namespace {

BandFrequencies bands(const RotaryConfig& config,
                      AnglePrecision precision = AnglePrecision::kIdeal) {
  const auto made = band_frequencies(config, precision);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return *made;
}
BandFrequencies plain(int d, double base) { return bands({.rotated_dims = d, .base = base}); }

void expect_relative(double value, double expected) {
  EXPECT_NEAR(value / expected, 1.0, 1e-9) << value << " " << expected;
}

TEST(RopeFrequencies, PlainBases) {
  struct Expected {
    int d;
    double base, second, last, wavelength;
  };
  for (const Expected& e : {Expected{64, 1e4, .7498942093, 1.333521432e-4, 47117.243},
                            {64, 1e5, .6978305849, 1.433012570e-5, 438459.888},
                            {64, 5e5, .6636012377, 3.013858152e-6, 2084764.773},
                            {64, 1e6, .6493816316, 1.539926526e-6, 4080185.126},
                            {128, 1e4, .8659643234, 1.154781985e-4, 54410.143},
                            {128, 5e5, .8146172339, 2.455140791e-6, 2559195.517},
                            {128, 1e6, .8058421878, 1.240937761e-6, 5063255.794}}) {
    const BandFrequencies b = plain(e.d, e.base);
    ASSERT_EQ(b.size(), static_cast<std::size_t>(e.d / 2));
    EXPECT_EQ(b.theta.front(), 1.0);
    expect_relative(b.theta[1], e.second);
    expect_relative(b.theta.back(), e.last);
    EXPECT_NEAR(b.wavelength(b.size() - 1), e.wavelength, 1e-3);
  }
  // Bands repeat in exact ratios where the base is a perfect power.
  struct Repeated {
    int d;
    double base;
    std::size_t bands;
    double ratio;
  };
  for (const Repeated& r :
       {Repeated{128, 1e4, 16, 10}, {128, 1e6, 32, 1000}, {64, 1e4, 8, 10}, {64, 1e6, 16, 1000}}) {
    const BandFrequencies b = plain(r.d, r.base);
    for (std::size_t i = 0; i + r.bands < b.size(); ++i)
      EXPECT_NEAR(b.theta[i + r.bands] * r.ratio / b.theta[i], 1.0, 1e-15);
  }
}

TEST(RopeFrequencies, Llama3Scaling) {
  RotaryConfig config{.rotated_dims = 128,
                      .base = 5e5,
                      .scaling = BandScaling::kLlama3,
                      .factor = 8,
                      .original_context = 8192};
  const BandFrequencies b = bands(config);
  const BandFrequencies unscaled = plain(128, 5e5);
  for (std::size_t i = 0; i <= 28; ++i) EXPECT_EQ(b.theta[i], unscaled.theta[i]);
  const double ramp[] = {2.166570764e-3, 1.371893568e-3, 8.567514129e-4,
                         5.248461610e-4, 3.126937504e-4, 1.785078128e-4};
  for (std::size_t i = 0; i < 6; ++i) expect_relative(b.theta[29 + i], ramp[i]);
  expect_relative(b.theta[35], 9.556212354e-5);
  expect_relative(b.theta[63], 3.068925989e-7);
  config = {.rotated_dims = 64,
            .base = 5e5,
            .scaling = BandScaling::kLlama3,
            .factor = 32,
            .original_context = 8192};
  const BandFrequencies small = bands(config);
  const double smoothed[] = {1.290547928e-3, 4.295567966e-4, 9.708287803e-5};
  for (std::size_t i = 0; i < 3; ++i) expect_relative(small.theta[15 + i], smoothed[i]);
  expect_relative(small.theta[31], 9.418306725e-8);
}

TEST(RopeFrequencies, YarnNtkLinearAndLongRope) {
  const BandFrequencies yarn = bands({.rotated_dims = 128,
                                      .base = 1e6,
                                      .scaling = BandScaling::kYarn,
                                      .factor = 4,
                                      .original_context = 32768});
  const BandFrequencies unscaled = plain(128, 1e6);
  for (std::size_t i = 0; i <= 23; ++i) EXPECT_EQ(yarn.theta[i], unscaled.theta[i]);
  for (std::size_t i = 40; i < 64; ++i) expect_relative(yarn.theta[i], unscaled.theta[i] / 4);
  expect_relative(yarn.theta[24], 5.375321491e-3);
  expect_relative(yarn.theta[31], 8.029597275e-4);
  expect_relative(yarn.theta[63], 3.102344402e-7);
  EXPECT_NEAR(yarn.attention_factor, 1.138629, 1e-6);

  const BandFrequencies ntk =
      bands({.rotated_dims = 128, .base = 1e4, .scaling = BandScaling::kNtk, .factor = 4});
  expect_relative(ntk.theta.back(), 2.886954962e-5);
  expect_relative(std::pow(ntk.theta[1], -64.0), 40889.942432);
  const BandFrequencies linear =
      bands({.rotated_dims = 128, .base = 1e4, .scaling = BandScaling::kLinear, .factor = 4});
  expect_relative(linear.theta.back(), 2.886954962e-5);
  expect_relative(linear.theta[0], 0.25);

  RotaryConfig dynamic{.rotated_dims = 128,
                       .base = 1e4,
                       .scaling = BandScaling::kDynamicNtk,
                       .factor = 2,
                       .original_context = 4096,
                       .length = 4096};
  EXPECT_EQ(bands(dynamic).theta, plain(128, 1e4).theta);
  dynamic.length = 8192;  // a factor of 2 * 2 - 1 = 3
  EXPECT_FALSE(bands(dynamic).stationary);
  expect_relative(bands(dynamic).theta.back(), plain(128, 1e4).theta.back() / 3);

  RotaryConfig longrope{.rotated_dims = 8,
                        .scaling = BandScaling::kLongRope,
                        .factor = 8,
                        .original_context = 4096,
                        .divisors = {1, 1, 2, 4}};
  const BandFrequencies divided = bands(longrope);
  expect_relative(divided.theta[3], plain(8, 1e4).theta[3] / 4);
  EXPECT_NEAR(divided.attention_factor, std::sqrt(1 + std::log(8.0) / std::log(4096.0)), 1e-12);
}

TEST(RopeFrequencies, PhasesAreExactFarOut) {
  const BandFrequencies b = plain(128, 5e5);
  // Long doubles hold a product of 2^30 and a frequency to 2^-33; ours to 2^-34 turns.
  for (const std::uint64_t position : {1ULL, 9001ULL, 1048576ULL, 1000000007ULL}) {
    for (std::size_t i = 0; i < b.size(); i += 7) {
      const long double angle =
          std::pow(5e5L, -static_cast<long double>(i) / 64) * static_cast<long double>(position);
      const auto expected =
          static_cast<double>(std::remainder(angle, 2 * std::numbers::pi_v<long double>));
      EXPECT_NEAR(std::remainder(b.angle(i, position) - expected, 2 * std::numbers::pi), 0.0, 1e-8);
    }
  }
  // Angles rounded to float differ as much as a float of their size can.
  const BandFrequencies rough =
      bands({.rotated_dims = 128, .base = 5e5}, AnglePrecision::kFloatAngles);
  const double off =
      std::remainder(rough.angle(0, 100001) - b.angle(0, 100001), 2 * std::numbers::pi);
  EXPECT_LE(std::abs(off), 0.004);
  const double far =
      std::remainder(rough.angle(1, 131073) - b.angle(1, 131073), 2 * std::numbers::pi);
  EXPECT_GT(std::abs(far), 0.0);
  EXPECT_LE(std::abs(far), 0.012);
}

// Half of the distance of neighbouring floats of the angle's size, which is met: .0039 radians from
// 65536 on, .0078 from 131072, .031 from 524288.
TEST(RopeFrequencies, AnglesInFloatAreHalfAUnitOff) {
  const RotaryConfig config{.rotated_dims = 128, .base = 5e5};
  const BandFrequencies exact = bands(config, AnglePrecision::kFloatFrequencies);
  const BandFrequencies rough = bands(config, AnglePrecision::kFloatAngles);
  for (const auto& [first, half_unit] :
       {std::pair{65536.0, 0x1p-8}, {131072.0, 0x1p-7}, {524288.0, 0x1p-5}}) {
    double largest = 0.0;
    const auto begin = static_cast<std::uint64_t>(std::ceil(first / exact.theta[1]));
    for (std::uint64_t position = begin; position < begin + 20000; ++position) {
      const double off =
          std::remainder(rough.angle(1, position) - exact.angle(1, position), 2 * std::numbers::pi);
      largest = std::max(largest, std::abs(off));
    }
    EXPECT_LE(largest, half_unit * (1 + 1e-6));
    EXPECT_GT(largest, 0.99 * half_unit);
  }
}

TEST(RopeFrequencies, NonsenseIsRefusedByName) {
  for (const RotaryConfig& bad :
       {RotaryConfig{.rotated_dims = 0}, RotaryConfig{.rotated_dims = 7},
        RotaryConfig{.rotated_dims = 64, .base = 1.0},
        RotaryConfig{.rotated_dims = 64, .base = NAN},
        RotaryConfig{.rotated_dims = 64, .scaling = BandScaling::kLinear, .factor = 0},
        RotaryConfig{.rotated_dims = 2, .scaling = BandScaling::kNtk, .factor = 2},
        RotaryConfig{.rotated_dims = 64, .scaling = BandScaling::kYarn, .factor = 2},
        RotaryConfig{.rotated_dims = 64,
        .scaling = BandScaling::kLlama3,
        .factor = 2,
        .original_context = 8192,
        .low_factor = 4,
        .high_factor = 4},
        RotaryConfig{.rotated_dims = 64,
        .scaling = BandScaling::kLongRope,
        .factor = 2,
        .divisors = {1.0}}}) {
    const auto made = band_frequencies(bad);
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.error().message.find("rotary positions"), std::string::npos);
  }
}

}  // namespace
}  // namespace volvelle
