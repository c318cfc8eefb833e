// Conversion of rows of floats to stored elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "volvelle/base/element_type.hpp"

namespace volvelle {

/// dst[i] = src[i] in `type`, round to nearest even, for n elements; equal to f32_to_f16 of
/// base/half.hpp bit by bit.
void convert_row(const float* src, std::byte* dst, ElementType type, std::int64_t n) noexcept;

/// dst[i] = float(src[i]), exact.
void load_row(const std::byte* src, ElementType type, float* dst, std::int64_t n) noexcept;

}  // namespace volvelle
