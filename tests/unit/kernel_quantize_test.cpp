// Block-quantised rows: bits of gguf.quants, error bounds, the same bits on every instruction set,
// and nothing that is not finite is hidden.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/convert.hpp"
#include "volvelle/base/half.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle {
namespace {

constexpr ElementType kBlockTypes[] = {ElementType::kQ8_0, ElementType::kQ4_0};

std::vector<std::byte> stored(const std::vector<float>& row, ElementType type) {
  const auto n = static_cast<std::int64_t>(row.size());
  std::vector<std::byte> bytes(row_bytes(type, n) + 1, std::byte{0xA5});
  convert_row(row.data(), bytes.data(), type, n);
  EXPECT_EQ(bytes.back(), std::byte{0xA5}) << "written past the row";
  bytes.pop_back();
  return bytes;
}

std::vector<float> loaded(const std::vector<std::byte>& bytes, ElementType type, std::size_t n) {
  std::vector<float> row(n + 1, 7.0f);
  load_row(bytes.data(), type, row.data(), static_cast<std::int64_t>(n));
  EXPECT_EQ(row.back(), 7.0f) << "written past the row";
  row.pop_back();
  return row;
}

std::string hex(const std::byte* bytes, std::size_t n) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < n; ++i) {
    text += kDigits[static_cast<int>(bytes[i]) / 16];
    text += kDigits[static_cast<int>(bytes[i]) % 16];
  }
  return text;
}

/// Five blocks of dyadic numbers: irregular; multiples of 1/2 with a q8_0 scale of 1, so halves are
/// ties; zeros; two elements of the largest magnitude, of which the first decides the sign of a
/// q4_0 scale, among ties; scales below the smallest normal half.
std::vector<float> five_blocks() {
  std::vector<float> x;
  for (int i = 0; i < 32; ++i)
    x.push_back(static_cast<float>((i * 7919 + 104729) % 65537 - 32768) / 1024);
  for (int i = 0; i < 32; ++i)
    x.push_back(i == 0 ? -127.0f : static_cast<float>((i * 37) % 255 - 127) / 2);
  x.resize(96, 0.0f);
  for (int i = 0; i < 32; ++i)
    x.push_back(i >= 5 && i < 20 ? static_cast<float>(i - 5) - 7.5f : (i % 2 == 0 ? -8.0f : 8.0f));
  for (int i = 0; i < 32; ++i) x.push_back(std::ldexp(static_cast<float>((i * 29) % 64 - 31), -20));
  return x;
}

// Made by quantize() of the Python package gguf 0.19 from the same numbers.
constexpr const char* kQ8Blocks[] = {
    "d4331a39597992b2d2f1113150708aa9c9e90828476781a1c0e0ff1f3f5e7e98b8d7",
    "003c81d3e5f80b1d30c2d5e7fa0d1f32c4d7e9fc0f2134c6d9ebfe112336c8dbed00",
    "00000000000000000000000000000000000000000000000000000000000000000000",
    "082c817f817f818999a9b9c8d8e8f808182838475767817f817f817f817f817f817f",
    "040085f86be053c83cb124990c7ff467dc4fc438ad2095087bf063d84bc034a91c91"};
constexpr const char* kQ4Blocks[] = {
    "c4439abcdeef0123456789abcdeff1133557", "f04b708596a7b94a6b748596a8b95a6b7485",
    "008088888888888888888888888888888888", "003cc0dfe0ff00f102f304f506f708f90afb",
    "4080cf59d16af38c049d26bf37c059e26af3"};

TEST(Quantize, SameBitsAsGguf) {
  const std::vector<float> row = five_blocks();
  const std::vector<std::byte> q8 = stored(row, ElementType::kQ8_0);
  const std::vector<std::byte> q4 = stored(row, ElementType::kQ4_0);
  ASSERT_EQ(q8.size(), 5u * 34);
  ASSERT_EQ(q4.size(), 5u * 18);
  for (std::size_t b = 0; b < 5; ++b) {
    EXPECT_EQ(hex(q8.data() + b * 34, 34), kQ8Blocks[b]) << b;
    EXPECT_EQ(hex(q4.data() + b * 18, 18), kQ4Blocks[b]) << b;
  }
}

class QuantizeOnIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
};

/// scale * quant by the definition of the layouts.
float element(const std::byte* row, ElementType type, std::size_t i) {
  const std::byte* p = row + i / 32 * row_bytes(type, 32);
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  if (type == ElementType::kQ8_0)
    return f16_to_f32(bits) * static_cast<float>(static_cast<std::int8_t>(p[2 + i % 32]));
  const int pair = static_cast<int>(p[2 + i % 16]);
  return f16_to_f32(bits) * static_cast<float>((i % 32 < 16 ? pair & 15 : pair >> 4) - 8);
}

// |x - loaded|: at most half a step, or with q4_0 a whole one at the end that has no level +8;
// and the scale's rounding to f16, 2^-11 of |q| <= 127 or 8 steps, 2^-25 absolute if subnormal.
TEST_P(QuantizeOnIsa, ErrorsAreBoundedAndLoadsExact) {
  std::mt19937 random(71);
  std::normal_distribution<float> normal;
  for (const ElementType type : kBlockTypes) {
    const bool q8 = type == ElementType::kQ8_0;
    for (const std::size_t n : {1u, 5u, 31u, 32u, 33u, 64u, 80u, 96u, 100u, 128u, 256u}) {
      for (const float size : {1e-6f, 1.0f, 1e4f}) {
        std::vector<float> row(n);
        for (float& x : row) x = size * normal(random);
        const std::vector<std::byte> bytes = stored(row, type);
        const std::vector<float> back = loaded(bytes, type, n);
        for (std::size_t i = 0; i < n; ++i) {
          float top = 0.0f;
          for (std::size_t j = i / 32 * 32; j < std::min(n, i / 32 * 32 + 32); ++j)
            top = std::max(top, std::abs(row[j]));
          const float levels = q8 ? 127.0f : 8.0f;
          const float step = top / levels;
          const float bound = step * (q8 ? 0.501f : 1.001f) + top * 0x1p-11f + levels * 0x1p-25f;
          EXPECT_LE(std::abs(row[i] - back[i]), bound) << n << " " << size;
          EXPECT_EQ(back[i], element(bytes.data(), type, i));
        }
      }
    }
  }
}

TEST_P(QuantizeOnIsa, LastBlockIsFilledWithZeros) {
  for (const ElementType type : kBlockTypes) {
    const std::vector<float> row(40, 3.0f);
    const std::vector<std::byte> bytes = stored(row, type);
    for (std::size_t i = 40; i < 64; ++i) EXPECT_EQ(element(bytes.data(), type, i), 0.0f);
  }
}

TEST_P(QuantizeOnIsa, WhatIsNotFiniteMakesItsBlockNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const ElementType type : kBlockTypes) {
    const float overflow = type == ElementType::kQ8_0 ? 65520.0f * 127 : 65520.0f * 8;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity,
                            overflow, -overflow, std::numeric_limits<float>::max()}) {
      for (const std::size_t at : {0u, 15u, 16u, 31u}) {
        std::vector<float> row(96, 0.5f);
        row[32 + at] = bad;
        const std::vector<float> back = loaded(stored(row, type), type, 96);
        for (std::size_t i = 0; i < 96; ++i)
          EXPECT_EQ(std::isfinite(back[i]), i < 32 || i >= 64) << bad << " " << at << " " << i;
      }
    }
    // The largest scale that f16 holds is still finite.
    const std::vector<float> edge = loaded(stored({overflow * 0.9999f}, type), type, 1);
    EXPECT_TRUE(std::isfinite(edge[0]));
  }
}

// 1 / scale overflows; the scale rounds to zero in f16 anyway.
TEST_P(QuantizeOnIsa, SubnormalInputsReadAsZero) {
  for (const ElementType type : kBlockTypes) {
    std::vector<float> row(32, 1e-43f);
    row[7] = -1e-42f;
    for (const float x : loaded(stored(row, type), type, 32)) EXPECT_EQ(x, 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantizeOnIsa, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace volvelle
