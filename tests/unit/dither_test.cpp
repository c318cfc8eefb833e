// The dither's numbers: the same on every instruction set, uniform, without relations between
// neighbours; and codes made with it, whose errors are uniform and do not depend on the row.
#include "kernels/dither.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "volvelle/base/half.hpp"
#include "volvelle/index/row_code.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle {
namespace {

constexpr auto kRows = static_cast<std::size_t>(kCodeTile);

TEST(Dither, ScoresLoseTheProductWithTheNumbersOnEveryIsa) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int n : {4, 64, 80, 256}) {
    for (const int n_queries : {1, 2, 3, 4, 7}) {
      const std::ptrdiff_t stride = n + 8;
      std::vector<float> a(static_cast<std::size_t>(n_queries * stride));
      for (float& x : a) x = normal(random) / 65536.0f;
      const DitherScan scan{(std::uint64_t{random()} << 32) | random(), n, n_queries, a.data(),
                            stride};
      for (const std::string& isa : supported_isas()) {
        SCOPED_TRACE(isa);
        ASSERT_TRUE(force_isa(isa).ok());
        std::vector<float> out(static_cast<std::size_t>(n_queries) * kRows, 1.0f);
        subtract_dither(scan, out.data(), kCodeTile);
        for (int h = 0; h < n_queries; ++h) {
          for (int t = 0; t < kCodeTile; ++t) {
            double expected = 0.0;
            double size = 1.0;
            for (int i = 0; i < n; ++i) {
              const double part = static_cast<double>(a[static_cast<std::size_t>(h * stride + i)]) *
                                  dither_number(scan.salt, t, i);
              expected += part;
              size += std::abs(part);
            }
            ASSERT_NEAR(out[static_cast<std::size_t>(h * kCodeTile + t)], 1.0 - expected,
                        (n + 4) * 0x1p-24 * size);
          }
        }
      }
      ASSERT_TRUE(force_isa("").ok());
    }
  }
}

TEST(Dither, NumbersAreUniformAndUnrelated) {
  std::mt19937_64 random(2);
  double sum = 0.0, square = 0.0;
  // Products of numbers that a bad hash would tie together: next row, next coordinate, next tile.
  double rows = 0.0, coordinates = 0.0, tiles = 0.0, far = 0.0;
  std::vector<int> buckets(64, 0);
  std::int64_t n = 0;
  for (int tile = 0; tile < 200; ++tile) {
    const std::uint64_t salt = random();
    for (int t = 0; t < 63; ++t) {
      for (int i = 0; i < 62; ++i, ++n) {
        const double x = (dither_number(salt, t, i) + 0.5) / kDitherPoints;
        sum += x;
        square += x * x;
        rows += x * dither_number(salt, t + 1, i) / kDitherPoints;
        coordinates += x * dither_number(salt, t, i + 1) / kDitherPoints;
        far += x * dither_number(salt, t, i + 2) / kDitherPoints;
        tiles += x * dither_number(salt + 1, t, i) / kDitherPoints;
        ++buckets[static_cast<std::size_t>((x + 0.5) * 64)];
      }
    }
  }
  // 781,200 numbers: standard errors of a mean 1 / sqrt(12 n) and of a product 1 / (12 sqrt(n)),
  // five of each.
  const auto count = static_cast<double>(n);
  EXPECT_NEAR(sum / count, 0.0, 5 / std::sqrt(12 * count));
  EXPECT_NEAR(square / count, 1.0 / 12, 5 * std::sqrt(1.0 / 180 / count));
  for (const double product : {rows, coordinates, tiles, far})
    EXPECT_NEAR(product / count, 0.0, 5 / (12 * std::sqrt(count)));
  for (const int bucket : buckets) EXPECT_NEAR(bucket, count / 64, 5 * std::sqrt(count / 64));
}

TEST(Dither, SumsOfProductsOnEveryIsa) {
  std::mt19937 random(3);
  std::vector<float> weight(kRows);
  std::vector<std::uint16_t> halves(kRows);
  for (float& x : weight) x = static_cast<float>(random() % 1000) / 1000.0f;
  for (auto& x : halves) x = f32_to_f16(0.5f + static_cast<float>(random() % 100) / 50.0f);
  double w = 0, wt = 0, squares = 0, largest = 0;
  for (std::size_t t = 0; t < kRows; ++t) {
    const double product = static_cast<double>(weight[t]) * f16_to_f32(halves[t]);
    w += static_cast<double>(weight[t]);
    wt += product;
    squares += product * product;
    largest = std::max(largest, product);
  }
  for (const std::string& isa : supported_isas()) {
    SCOPED_TRACE(isa);
    ASSERT_TRUE(force_isa(isa).ok());
    const ProductSums sums = sum_products(weight.data(), halves.data());
    EXPECT_NEAR(sums.sum_w, w, 1e-6 * w);
    EXPECT_NEAR(sums.sum_wt, wt, 1e-6 * wt);
    EXPECT_NEAR(sums.sum_wt_squared, squares, 1e-6 * squares);
    EXPECT_NEAR(sums.max_wt, largest, 1e-6 * largest);
    EXPECT_EQ(sums.max_w, *std::max_element(weight.begin(), weight.end()));
  }
  ASSERT_TRUE(force_isa("").ok());
}

/// A code without rotation: coordinates are the row's own.
RowCode plain_code(int dim, CodeWidths widths) {
  RowCode code;
  code.dim = dim;
  code.widths = widths;
  const auto n = static_cast<std::size_t>(dim);
  code.mean.assign(n, 0.25f);
  code.encode.assign(n * static_cast<std::size_t>(code.stride()), 0.0f);
  code.decode.assign(n * n, 0.0f);
  for (std::size_t i = 0; i < n; ++i) {
    code.encode[i * static_cast<std::size_t>(code.stride()) + i] = 1.0f;
    code.decode[i * n + i] = 1.0f;
    code.step.push_back(std::exp2f(-static_cast<float>(widths.width_of(static_cast<int>(i)))));
  }
  return code;
}

TEST(Dither, ErrorsOfCodedRowsAreUniformWhateverTheRow) {
  const RowCode code = plain_code(32, {8, 8, 16});
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> rows(kRows * 32);
  for (float& x : rows) x = normal(random);
  for (std::size_t i = 0; i < 32; ++i) rows[5 * 32 + i] = rows[9 * 32 + i];  // equal rows
  for (std::size_t i = 0; i < 32; ++i) rows[7 * 32 + i] = 0.25f;             // nothing but the mean
  std::vector<std::byte> levels(code.widths.tile_bytes() + 64);
  std::vector<std::uint16_t> scales(kRows);
  CodeScratch scratch;
  std::vector<double> first(32, 0.0), second(32, 0.0), with_row(32, 0.0);
  const int n_tiles = 300;
  for (int tile = 0; tile < n_tiles; ++tile) {
    const std::uint64_t salt = random();
    const CodedRows coded{levels.data(), scales.data(), nullptr, &salt};
    encode_tile(code, CodeSide::kKeys, rows.data(), coded, scratch);
    for (int t = 0; t < kCodeTile; ++t) {
      const std::vector<float> x = decode_row(code, CodeSide::kKeys, coded, t);
      const float scale = f16_to_f32(scales[static_cast<std::size_t>(t)]);
      for (std::size_t i = 0; i < 32; ++i) {
        const double exact = rows[static_cast<std::size_t>(t) * 32 + i] - 0.25;
        if (t == 7) {
          ASSERT_EQ(x[i], 0.0f);
          continue;
        }
        const double u = (static_cast<double>(x[i]) - exact) / (scale * code.step[i]);
        ASSERT_LE(std::abs(u), 0.5 + 1e-3) << t << " " << i;  // nothing clips
        first[i] += u;
        second[i] += u * u;
        with_row[i] += u * exact;
      }
    }
  }
  const double n = 63.0 * n_tiles;
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(first[i] / n, 0.0, 5 / std::sqrt(12 * n));
    EXPECT_NEAR(second[i] / n, 1.0 / 12, 5 * std::sqrt(1.0 / 180 / n));
    EXPECT_NEAR(with_row[i] / n, 0.0, 6 / std::sqrt(12 * n));  // rows have a deviation of about 1
  }
}

TEST(Dither, WaterFillingLeavesNoCoordinateOut) {
  std::vector<double> weight(80);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = std::exp2(-static_cast<double>(i));
  EXPECT_LT(water_fill(weight, 3.0, 4).total(), 80);
  for (const double bits : {2.0, 3.0, 4.0, 5.5}) {
    const CodeWidths widths = water_fill(weight, bits, 4, Dither::kSubtractive);
    EXPECT_EQ(widths.total(), 80);
    EXPECT_LE(widths.bits(), bits * 80);
  }
}

}  // namespace
}  // namespace volvelle
