// Run-time dispatch of row conversion.
#include "kernels/convert.hpp"

#include <cstring>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/convert-inl.h"
// clang-format on

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(row_to_half);
HWY_EXPORT(half_to_row);

void convert_row(const float* src, std::byte* dst, ElementType type, std::int64_t n) noexcept {
  if (type == ElementType::kF32) {
    std::memcpy(dst, src, row_bytes(type, n));
    return;
  }
  HWY_DYNAMIC_DISPATCH(row_to_half)(src, reinterpret_cast<std::uint16_t*>(dst), n);
}

void load_row(const std::byte* src, ElementType type, float* dst, std::int64_t n) noexcept {
  if (type == ElementType::kF32) {
    std::memcpy(dst, src, row_bytes(type, n));
    return;
  }
  HWY_DYNAMIC_DISPATCH(half_to_row)(reinterpret_cast<const std::uint16_t*>(src), dst, n);
}

}  // namespace volvelle
#endif  // HWY_ONCE
