// Conversion of rows of floats to stored elements and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "volvelle/base/element_type.hpp"

namespace volvelle {

/// dst[i] = src[i] in `type` for n elements; the bits are the same on every processor. f16 and bf16
/// round to nearest even, equal to base/half.hpp bit by bit; block types as in quantize.hpp. Writes
/// row_bytes(type, n) bytes. NaN, infinities and overflow stay visible.
void convert_row(const float* src, std::byte* dst, ElementType type, std::int64_t n) noexcept;

/// dst[i] = float(src[i]), exact.
void load_row(const std::byte* src, ElementType type, float* dst, std::int64_t n) noexcept;

}  // namespace volvelle
