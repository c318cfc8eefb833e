// Row conversion of 16-bit types equals the scalar one bit by bit, for every half and for floats
// around every rounding border; block types are in kernel_quantize_test.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "kernels/convert.hpp"
#include "volvelle/base/half.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle {
namespace {

class Convert : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
};

void check(const std::vector<float>& values) {
  std::vector<std::byte> row(
      row_bytes(ElementType::kF16, static_cast<std::int64_t>(values.size())));
  convert_row(values.data(), row.data(), ElementType::kF16,
              static_cast<std::int64_t>(values.size()));
  const auto* bits = reinterpret_cast<const std::uint16_t*>(row.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits[i], f32_to_f16(values[i])) << std::hexfloat << values[i];
  }
}

TEST_P(Convert, EveryHalfWidensExactly) {
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> row(halves.size());
  load_row(reinterpret_cast<const std::byte*>(halves.data()), ElementType::kF16, row.data(),
           1 << 16);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float expected = f16_to_f32(halves[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(row[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(row[i]), std::bit_cast<std::uint32_t>(expected)) << i;
    }
  }
}

TEST_P(Convert, RoundsToNearestEven) {
  std::vector<float> values;
  for (std::uint32_t half = 0; half < 0x7C00;
       ++half) {  // each half, the tie above it and both neighbours of the tie
    const float low = f16_to_f32(static_cast<std::uint16_t>(half));
    const float high = half == 0x7BFF ? 65536.0f : f16_to_f32(static_cast<std::uint16_t>(half + 1));
    const float tie = low + (high - low) / 2;
    for (const float x : {low, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  check(values);
}

TEST_P(Convert, AnyBitsAndAnyLength) {
  std::mt19937 random(51);
  std::vector<float> values;
  for (int i = 0; i < 100000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  check(values);
  for (std::size_t n = 0; n < 70; ++n)
    check({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n)});
}

TEST_P(Convert, BfloatRows) {
  std::mt19937 random(52);
  std::vector<float> values(20000);
  for (float& x : values) x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  for (const std::size_t n : {0u, 1u, 7u, 15u, 16u, 17u, 33u, 20000u}) {
    std::vector<std::uint16_t> row(n + 1, 0xABCD);
    convert_row(values.data(), reinterpret_cast<std::byte*>(row.data()), ElementType::kBF16,
                static_cast<std::int64_t>(n));
    EXPECT_EQ(row[n], 0xABCD);
    std::vector<float> back(n + 1, 7.0f);
    load_row(reinterpret_cast<const std::byte*>(row.data()), ElementType::kBF16, back.data(),
             static_cast<std::int64_t>(n));
    EXPECT_EQ(back[n], 7.0f);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(row[i], f32_to_bf16(values[i])) << std::hexfloat << values[i];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), static_cast<std::uint32_t>(row[i]) << 16);
    }
  }
}

TEST_P(Convert, FloatRowsAreCopied) {
  const std::vector<float> values = {1.5f, -0.0f, 3e38f};
  std::vector<float> copy(3);
  convert_row(values.data(), reinterpret_cast<std::byte*>(copy.data()), ElementType::kF32, 3);
  EXPECT_EQ(values, copy);
}

INSTANTIATE_TEST_SUITE_P(Isa, Convert, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace volvelle
