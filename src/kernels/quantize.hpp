// Rows of floats to block-quantised rows (layouts in base/element_type.hpp), rounded as ggml's
// reference code and Python's gguf.quants do.
//
// A block with a NaN or infinity gets a NaN scale, one whose scale overflows f16 an infinite one,
// so every element of such a block reads as not finite and nothing bad is hidden.
#pragma once

#include <cstddef>
#include <cstdint>

namespace volvelle {

/// scale = max |x| / 127, q = round(x / scale), halves away from zero. Error per element at most
/// 0.5 of the scale, and what rounding the scale to f16 adds.
void quantize_row_q8_0(const float* src, std::byte* dst, std::int64_t n) noexcept;

/// scale = (the x of largest magnitude) / -8, q = min(15, trunc(x / scale + 8.5)). Error per
/// element at most 0.5 of the scale, or 1 on the side opposite to that x, and what the rounding
/// adds.
void quantize_row_q4_0(const float* src, std::byte* dst, std::int64_t n) noexcept;

}  // namespace volvelle
