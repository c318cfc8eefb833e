// Quantisation of rows, compiled once for all processors: stored bits must not depend on them.
//
// No product is added to or subtracted from in one type, so that no compiler can fuse the two and
// change a rounding; sums go through double, where they are exact. Loops are branch-free over a
// block; cost about 2 ns per element, paid once per stored row.
#include "kernels/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "volvelle/base/element_type.hpp"
#include "volvelle/base/half.hpp"

namespace volvelle {
namespace {

constexpr std::uint16_t kHalfNan = 0x7E00;

/// One block of a row as floats, zeros behind the row's end.
struct Block {
  float x[kQuantBlock] = {};

  Block(const float* row, std::int64_t i, std::int64_t n) noexcept {
    std::copy_n(row + i, std::min(kQuantBlock, n - i), x);
  }
  /// The largest |x|, or a NaN or infinity if there is one: as integers, magnitudes are ordered
  /// with those on top.
  float max_magnitude() const noexcept {
    std::int32_t top = 0;
    for (const float value : x)
      top = std::max(top,
                     static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu));
    return std::bit_cast<float>(top);
  }
};

/// 1 / scale, or 0 where all quants are to be zero.
float inverse(float scale) noexcept {
  const float result = scale != 0.0f ? 1.0f / scale : 0.0f;
  return std::isfinite(result) ? result : 0.0f;
}

void store_half(std::uint16_t bits, std::byte* dst) noexcept {
  std::memcpy(dst, &bits, sizeof bits);
}

void quantize_block_q8_0(const Block& block, std::byte* dst) noexcept {
  std::int8_t q[kQuantBlock] = {};
  std::uint16_t scale_bits = kHalfNan;
  const float top = block.max_magnitude();
  if (std::isfinite(top)) {
    const float scale = top / 127.0f;
    const float inverse_scale = inverse(scale);
    scale_bits = f32_to_f16(scale);
    for (std::int64_t i = 0; i < kQuantBlock; ++i) {
      const double y = block.x[i] * inverse_scale;
      const int whole = static_cast<int>(y);
      const double rest = y - whole;
      q[i] = static_cast<std::int8_t>(whole + (rest >= 0.5 ? 1 : 0) - (rest <= -0.5 ? 1 : 0));
    }
  }
  store_half(scale_bits, dst);
  std::memcpy(dst + 2, q, sizeof q);
}

void quantize_block_q4_0(const Block& block, std::byte* dst) noexcept {
  constexpr std::int64_t kHalf = kQuantBlock / 2;
  std::uint8_t q[kQuantBlock];
  std::fill_n(q, kQuantBlock, std::uint8_t{8});  // the quant of zero
  std::uint16_t scale_bits = kHalfNan;
  const float top = block.max_magnitude();
  if (std::isfinite(top)) {
    const float* const first =
        std::find_if(block.x, block.x + kQuantBlock, [top](float x) { return std::abs(x) == top; });
    const float scale = (top == 0.0f ? 0.0f : *first) / -8.0f;
    const float inverse_scale = inverse(scale);
    scale_bits = f32_to_f16(scale);
    for (std::int64_t i = 0; i < kQuantBlock; ++i) {
      const double y = block.x[i] * inverse_scale;
      q[i] = static_cast<std::uint8_t>(std::min(15, static_cast<int>(static_cast<float>(y + 8.5))));
    }
  }
  store_half(scale_bits, dst);
  for (std::int64_t i = 0; i < kHalf; ++i)
    dst[2 + i] = static_cast<std::byte>(q[i] | (q[i + kHalf] << 4));
}

}  // namespace

void quantize_row_q8_0(const float* src, std::byte* dst, std::int64_t n) noexcept {
  constexpr auto kBytes = row_bytes(ElementType::kQ8_0, kQuantBlock);
  for (std::int64_t i = 0; i < n; i += kQuantBlock, dst += kBytes)
    quantize_block_q8_0(Block(src, i, n), dst);
}

void quantize_row_q4_0(const float* src, std::byte* dst, std::int64_t n) noexcept {
  constexpr auto kBytes = row_bytes(ElementType::kQ4_0, kQuantBlock);
  for (std::int64_t i = 0; i < n; i += kQuantBlock, dst += kBytes)
    quantize_block_q4_0(Block(src, i, n), dst);
}

}  // namespace volvelle
