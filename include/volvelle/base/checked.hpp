// Overflow-checked arithmetic for every size that comes from a file or a flag. A product that wraps
// around would pass every later bound check, so sizes are never multiplied without this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace volvelle {

/// a * b, or nothing on overflow.
constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// a + b, or nothing on overflow.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

}  // namespace volvelle
