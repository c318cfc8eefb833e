// Base types: halves against the compiler's own _Float16 (all 65,536 of them, and rounding at every
// border), checked arithmetic against 128-bit integers, results, distinct integers.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/result_macros.hpp"
#include "volvelle/base/checked.hpp"
#include "volvelle/base/element_type.hpp"
#include "volvelle/base/half.hpp"
#include "volvelle/base/ids.hpp"

namespace volvelle {
namespace {

std::uint16_t compiler_half(float f) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(f));
}

void expect_same_half(float f) {
  if (std::isnan(f)) {
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
    return;
  }
  EXPECT_EQ(f32_to_f16(f), compiler_half(f)) << f << " = " << std::bit_cast<std::uint32_t>(f);
}

TEST(Half, EveryHalfToFloatIsExact) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const float ours = f16_to_f32(half);
    const auto compiler = static_cast<float>(std::bit_cast<_Float16>(half));
    if (std::isnan(compiler)) {
      EXPECT_TRUE(std::isnan(ours));
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(ours), std::bit_cast<std::uint32_t>(compiler)) << h;
    }
  }
}

// Rounding can only go wrong at the midpoints between neighbouring halves: try each one and its
// float neighbours.
TEST(Half, RoundingAtEveryMidpoint) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (std::uint16_t h = 0; h < 0x7C00; ++h) {
    const float low = f16_to_f32(h);
    const float high = h == 0x7BFF ? 65536.0f : f16_to_f32(static_cast<std::uint16_t>(h + 1));
    const float middle = low + (high - low) / 2;  // exact in float
    for (const float f :
         {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinity)}) {
      expect_same_half(f);
      expect_same_half(-f);
    }
  }
}

TEST(Half, RandomBitPatternsAndSpecials) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    expect_same_half(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  for (const float f : {std::numeric_limits<float>::infinity(), std::nanf(""), 1e30f, 1e-30f, 0.0f,
                        std::numeric_limits<float>::denorm_min()}) {
    expect_same_half(f);
    expect_same_half(-f);
  }
}

TEST(Checked, AgreesWith128Bits) {
  std::mt19937_64 random(2);
  const std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < 100000; ++i) {
    // Shifts spread the sizes, so that both outcomes are common.
    const std::uint64_t a = random() >> (random() % 64);
    const std::uint64_t b = random() >> (random() % 64);
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    const Wide sum = static_cast<Wide>(a) + b;
    EXPECT_EQ(checked_mul(a, b).has_value(), product <= max);
    EXPECT_EQ(checked_add(a, b).has_value(), sum <= max);
    if (product <= max) {
      EXPECT_EQ(*checked_mul(a, b), a * b);
    }
    if (sum <= max) {
      EXPECT_EQ(*checked_add(a, b), a + b);
    }
  }
}

TEST(ElementType, Names) {
  for (std::size_t i = 0; i < kElementTypes.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(kElementTypes[i]), i);  // the list misses none
    EXPECT_EQ(parse_element_type(to_string(kElementTypes[i])), kElementTypes[i]);
  }
  for (const char* name : {"f32", "f16", "bf16", "q8_0", "q4_0"})
    EXPECT_EQ(to_string(parse_element_type(name).value()), name);
  for (const char* name : {"f16 ", "Q8_0", "q8_1", ""})
    EXPECT_EQ(parse_element_type(name), std::nullopt) << name;
}

TEST(ElementType, RowsOfBlockTypesAreWholeBlocks) {
  using enum ElementType;
  EXPECT_EQ(row_bytes(kF32, 7), 28u);
  EXPECT_EQ(row_bytes(kF16, 7), 14u);
  EXPECT_EQ(row_bytes(kBF16, 7), 14u);
  for (const auto& [dim, blocks] : {std::pair{1, 1u},
                                    {31, 1u},
                                    {32, 1u},
                                    {33, 2u},
                                    {80, 3u},
                                    {100, 4u},
                                    {128, 4u},
                                    {512, 16u}}) {
    EXPECT_EQ(row_bytes(kQ8_0, dim), blocks * 34) << dim;
    EXPECT_EQ(row_bytes(kQ4_0, dim), blocks * 18) << dim;
  }
  EXPECT_EQ(row_bytes(kQ8_0, 0), 0u);
  EXPECT_FALSE(is_block_quantized(kF32) || is_block_quantized(kF16) || is_block_quantized(kBF16));
  EXPECT_TRUE(is_block_quantized(kQ8_0) && is_block_quantized(kQ4_0));
}

TEST(Bfloat, EveryValueSurvivesAndNarrowingIsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const float value = bf16_to_f32(b);
    const bool is_nan = std::isnan(value);
    EXPECT_EQ(is_nan, (bits & 0x7FFFu) > 0x7F80u);
    EXPECT_EQ(f32_to_bf16(value), is_nan ? b | 0x40u : b);
    if (is_nan || (bits & 0x7FFFu) >= 0x7F7Fu) continue;
    // The midpoint to the next larger magnitude goes to the even one, its neighbours do not.
    const float above = bf16_to_f32(static_cast<std::uint16_t>(bits + 1));
    const float tie = value + (above - value) / 2;
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(f32_to_bf16(tie), even);
    EXPECT_EQ(f32_to_bf16(std::nextafter(tie, value)), b);
    EXPECT_EQ(f32_to_bf16(std::nextafter(tie, above)), bits + 1);
  }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80u);  // rounds to infinity
}

TEST(Ids, ArithmeticAndOrder) {
  const Position p(5);
  EXPECT_EQ((p + 3).value(), 8);
  EXPECT_EQ(p - Position(2), 3);
  EXPECT_LT(p - 1, p);
  EXPECT_EQ(Position().value(), 0);
}

Result<int> half_of(int n) {
  if (n % 2 != 0) return Error{ErrorCode::kInvalidArgument, "half: odd"};
  return n / 2;
}

Result<int> quarter_of(int n) {
  VOLVELLE_ASSIGN_OR_RETURN(const int half, half_of(n));
  VOLVELLE_RETURN_IF_ERROR(half_of(half));
  return half / 2;
}

TEST(Result, MacrosReturnTheFirstError) {
  EXPECT_EQ(*quarter_of(12), 3);
  EXPECT_FALSE(quarter_of(3).ok());
  EXPECT_EQ(quarter_of(6).error().message, "half: odd");
}

TEST(Result, LookingAtTheWrongSideThrows) {
  EXPECT_THROW((void)half_of(1).value(), std::logic_error);
  EXPECT_THROW((void)half_of(2).error(), std::logic_error);
  const Status good;
  EXPECT_TRUE(good.ok());
  EXPECT_THROW((void)good.error(), std::logic_error);
  const Status bad = Error{ErrorCode::kIo, "x"};
  EXPECT_THROW(bad.value(), std::logic_error);
}

TEST(Result, EveryCodeHasItsOwnName) {
  std::vector<std::string> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kNumeric); ++code) {
    names.emplace_back(to_string(static_cast<ErrorCode>(code)));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(std::find(names.begin(), names.end(), "unknown"), names.end());
}

}  // namespace
}  // namespace volvelle
