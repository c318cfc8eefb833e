// The code kernels on every instruction set against plain sums over unpacked levels.
#include "kernels/code_scan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "volvelle/base/half.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle {
namespace {

constexpr auto kRows = static_cast<std::size_t>(kCodeTile);

struct Tile {
  CodeWidths widths;
  std::vector<std::uint8_t> levels;  // [row, coordinate]
  std::vector<std::byte> keys, values;

  Tile(CodeWidths w, std::uint32_t seed) : widths(w) {
    std::mt19937 random(seed);
    for (std::size_t t = 0; t < kRows; ++t) {
      for (int i = 0; i < w.total(); ++i)
        levels.push_back(static_cast<std::uint8_t>(random() & ((1U << w.width_of(i)) - 1)));
    }
    keys.resize(w.tile_bytes() + 64);
    values.resize(w.tile_bytes() + 64);
    pack_key_tile(w, levels.data(), keys.data());
    const auto whole = [](int n) { return n % kValueCodeUnit == 0; };
    if (whole(w.n8) && whole(w.n4) && whole(w.n2)) pack_value_tile(w, levels.data(), values.data());
  }
  int level(std::size_t t, int i) const {
    return levels[t * static_cast<std::size_t>(widths.total()) + static_cast<std::size_t>(i)];
  }
  int width_class(int i) const { return i < widths.n8 ? 0 : i < widths.n8 + widths.n4 ? 1 : 2; }
};

class CodeScan : public testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
  template <class F>
  void on_every_isa(F f) {
    std::vector<std::string> all = supported_isas();
    all.emplace_back();  // the scan has one more, which only the best choice takes
    for (const std::string& isa : all) {
      SCOPED_TRACE(isa);
      ASSERT_TRUE(force_isa(isa).ok());
      f();
    }
  }
};

TEST_F(CodeScan, LevelsComeBackFromTheirPlaces) {
  for (const CodeWidths w :
       {CodeWidths{16, 16, 16}, CodeWidths{0, 32, 32}, CodeWidths{16, 0, 48}}) {
    const Tile tile(w, 1);
    for (std::size_t t = 0; t < kRows; ++t) {
      for (int i = 0; i < w.total(); ++i) {
        ASSERT_EQ(key_level(w, tile.keys.data(), static_cast<int>(t), i), tile.level(t, i));
        ASSERT_EQ(value_level(w, tile.values.data(), static_cast<int>(t), i), tile.level(t, i));
      }
    }
  }
}

TEST_F(CodeScan, ScoresAreSumsOverTheLevels) {
  std::mt19937 random(2);
  for (const CodeWidths w :
       {CodeWidths{4, 24, 32}, CodeWidths{32, 0, 0}, CodeWidths{0, 8, 4}, CodeWidths{0, 0, 256},
        CodeWidths{8, 112, 128}, CodeWidths{256, 0, 0}}) {
    const Tile tile(w, random());
    for (const int n_queries : {1, 3, 4, 7, 16}) {
      const std::ptrdiff_t stride = w.total() + 4;
      std::vector<std::int8_t> q(static_cast<std::size_t>(n_queries * stride));
      // Extreme bytes too: they are where 16-bit sums would overflow.
      for (auto& x : q)
        x = static_cast<std::int8_t>(random() % 3 == 0 ? 127
                                                       : static_cast<int>(random() % 255) - 127);
      std::vector<float> gain, offset;
      for (int i = 0; i < 3 * n_queries; ++i)
        gain.push_back(0.001f * static_cast<float>(1 + random() % 100));
      for (int i = 0; i < n_queries; ++i) offset.push_back(static_cast<float>(random() % 7) - 3.0f);
      const KeyScan scan{w, n_queries, q.data(), stride, gain.data(), offset.data()};
      on_every_isa([&] {
        std::vector<float> out(static_cast<std::size_t>(n_queries) * 80, -1e9f);
        scan_key_tile(scan, tile.keys.data(), out.data(), 80);
        for (int h = 0; h < n_queries; ++h) {
          for (std::size_t t = 0; t < kRows; ++t) {
            double expected = offset[static_cast<std::size_t>(h)];
            double size = std::abs(expected);
            for (int i = 0; i < w.total(); ++i) {
              const double part =
                  static_cast<double>(gain[static_cast<std::size_t>(3 * h + tile.width_class(i))]) *
                  q[static_cast<std::size_t>(h * stride + i)] * tile.level(t, i);
              expected += part;
              size += std::abs(part);
            }
            // Integer sums are exact; at most about 140 float additions of partial sums follow.
            ASSERT_NEAR(out[static_cast<std::size_t>(h) * 80 + t], expected, 140 * 0x1p-24 * size);
          }
        }
      });
    }
  }
}

TEST_F(CodeScan, WeighingATile) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> raw(kRows);
  std::vector<std::uint16_t> scales(kRows);
  for (float& x : raw) x = normal(random);
  for (auto& s : scales) s = f32_to_f16(0.5f + 0.01f * static_cast<float>(random() % 100));
  for (const auto& [begin, end] : {std::pair{0, 64}, {4, 64}, {0, 1}, {63, 64}, {5, 5}}) {
    on_every_isa([&, begin = begin, end = end] {
      std::vector<float> s = raw;
      TileWeights w;
      weigh_key_tile({s.data(), 64, 1}, scales.data(), begin, end, &w);
      double m = -std::numeric_limits<double>::infinity();
      for (int t = begin; t < end; ++t)
        m = std::max(m, static_cast<double>(raw[static_cast<std::size_t>(t)] *
                                            f16_to_f32(scales[static_cast<std::size_t>(t)])));
      if (begin == end) {
        EXPECT_EQ(w.m, -std::numeric_limits<float>::infinity());
        EXPECT_EQ(w.d, 0.0f);
      } else {
        EXPECT_NEAR(w.m, m, 1e-5);
      }
      double d = 0.0;
      for (int t = 0; t < 64; ++t) {
        const auto at = static_cast<std::size_t>(t);
        const double expected =
            t < begin || t >= end ? 0.0 : std::exp2(raw[at] * f16_to_f32(scales[at]) - m);
        EXPECT_NEAR(s[at], expected, 3e-6);
        d += expected;
      }
      EXPECT_NEAR(w.d, d, 1e-5 * d + 1e-12);
    });
  }
  on_every_isa([&] {
    std::vector<float> s = raw;
    s[20] = std::nanf("");
    TileWeights w;
    weigh_key_tile({s.data(), 64, 1}, scales.data(), 0, 64, &w);
    EXPECT_TRUE(std::isnan(w.d));
    s = raw;
    s[20] = std::nanf("");  // outside: not looked at
    weigh_key_tile({s.data(), 64, 1}, scales.data(), 21, 64, &w);
    EXPECT_FALSE(std::isnan(w.d));
    auto bad = scales;
    bad[30] = 0x7E00;  // the scale of a row that could not be coded
    s = raw;
    weigh_key_tile({s.data(), 64, 1}, bad.data(), 0, 64, &w);
    EXPECT_TRUE(std::isnan(w.d) || std::isnan(w.m));
  });
}

TEST_F(CodeScan, WeightedSumsOfValueLevels) {
  std::mt19937 random(4);
  for (const CodeWidths w : {CodeWidths{0, 32, 32}, CodeWidths{16, 32, 16}, CodeWidths{0, 0, 128},
                             CodeWidths{64, 0, 0}}) {
    const Tile tile(w, random());
    for (const int n_queries : {1, 3, 5, 8}) {
      std::vector<float> weights(kRows * static_cast<std::size_t>(n_queries));
      for (float& x : weights) x = static_cast<float>(random() % 1000) / 1000.0f;
      std::vector<std::uint16_t> scales(kRows);
      for (auto& s : scales) s = f32_to_f16(0.5f + 0.01f * static_cast<float>(random() % 100));
      on_every_isa([&] {
        std::vector<std::int8_t> bytes(weights.size());
        std::vector<float> gain;
        for (int h = 0; h < n_queries; ++h) {
          const auto at = static_cast<std::size_t>(h) * kRows;
          TileBytes b;
          quantize_tile_weights(weights.data() + at, 64, 1, scales.data(), bytes.data() + at, &b);
          gain.push_back(b.gain);
          double sum = 0.0, byte_sum = 0.0;
          for (std::size_t t = 0; t < kRows; ++t) {
            const double exact = weights[at + t] * f16_to_f32(scales[t]);
            EXPECT_NEAR(bytes[at + t] * static_cast<double>(b.gain), exact, 0.5001 * b.gain);
            sum += weights[at + t];
            byte_sum += bytes[at + t];
          }
          EXPECT_NEAR(b.weights, sum, 1e-4);
          EXPECT_EQ(b.bytes, byte_sum);
        }
        alignas(64) float acc[8 * 128] = {};
        const ValueScan scan{w, n_queries, bytes.data(), gain.data(), acc, 128};
        add_value_tile(scan, tile.values.data());
        for (int h = 0; h < n_queries; ++h) {
          for (int i = 0; i < w.total(); ++i) {
            double exact = 0.0;
            for (std::size_t t = 0; t < kRows; ++t)
              exact += bytes[static_cast<std::size_t>(h) * kRows + t] * tile.level(t, i);
            ASSERT_NEAR(
                acc[h * 128 + i], exact * static_cast<double>(gain[static_cast<std::size_t>(h)]),
                1e-6 * exact * static_cast<double>(gain[static_cast<std::size_t>(h)]) + 1e-9);
          }
        }
      });
    }
  }
  std::vector<float> none(kRows, 0.0f);
  std::vector<std::uint16_t> scales(kRows, f32_to_f16(1.0f));
  std::int8_t bytes[64];
  TileBytes empty;
  quantize_tile_weights(none.data(), 64, 1, scales.data(), bytes, &empty);
  EXPECT_EQ(empty.gain, 0.0f);
}

TEST_F(CodeScan, CombiningHeadsAndSummingErrors) {
  std::mt19937 random(5);
  std::vector<float> weights(3 * kRows);
  for (float& x : weights) x = static_cast<float>(random() % 1000) / 1000.0f;
  weights[7] = 0.0f;
  const float factors[3] = {0.5f, 0.25f, 2.0f};
  std::vector<std::uint16_t> radii(kRows);
  for (auto& r : radii) r = f32_to_f16(static_cast<float>(random() % 100) / 100.0f);
  on_every_isa([&] {
    float out[64], maxima[4];
    combine_tile_weights(weights.data(), 64, factors, 3, out, maxima);
    for (std::size_t t = 0; t < kRows; ++t)
      EXPECT_NEAR(out[t], 0.5 * weights[t] + 0.25 * weights[64 + t] + 2.0 * weights[128 + t], 1e-6);
    for (int b = 0; b < 4; ++b)
      EXPECT_EQ(maxima[b], *std::max_element(out + 16 * b, out + 16 * b + 16));
    double bound = 0.0, least = 0.0, expected = 0.0;
    for (std::size_t t = 0; t < kRows; ++t) {
      const double x = 0.7 * f16_to_f32(radii[t]) + 0.01;
      bound += weights[t] * (x + x * x * std::exp(x) / 2);
      least += weights[t] * std::expm1(x);
      const double y = 0.7 * f16_to_f32(radii[t]);
      expected += weights[t] * 0.4 * y * std::exp(1.5 * y * y);
    }
    const float sum =
        sum_error_shares(ErrorShare::kBound, weights.data(), radii.data(), 0.7f, 0.01f, 0);
    EXPECT_NEAR(sum, bound, 1e-5 * bound);
    EXPECT_GT(sum, least);
    EXPECT_NEAR(
        sum_error_shares(ErrorShare::kExpected, weights.data(), radii.data(), 0.7f, 0.0f, 0),
        expected, 1e-5 * expected);
    // A huge radius makes the bound infinite, without weight too, which may be one that vanished.
    const auto huge = [&](ErrorShare share, const std::vector<float>& w, int begin) {
      return sum_error_shares(share, w.data(), radii.data(), 1e4f, 0.0f, begin);
    };
    const std::vector<float> none(kRows, 0.0f);
    EXPECT_TRUE(std::isinf(huge(ErrorShare::kBound, weights, 0)));
    EXPECT_TRUE(std::isinf(huge(ErrorShare::kBound, none, 0)));
    EXPECT_EQ(huge(ErrorShare::kBound, none, 64), 0.0f);
    EXPECT_EQ(huge(ErrorShare::kExpected, none, 0), 0.0f);
  });
}

}  // namespace
}  // namespace volvelle
