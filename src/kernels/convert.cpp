// Run-time dispatch of row conversion.
#include "kernels/convert.hpp"

#include <cstring>

#include "kernels/quantize.hpp"

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
HWY_EXPORT(row_to_bfloat);
HWY_EXPORT(row_to_floats);

void convert_row(const float* src, std::byte* dst, ElementType type, std::int64_t n) noexcept {
  switch (type) {
    case ElementType::kF32:
      std::memcpy(dst, src, row_bytes(type, n));
      return;
    case ElementType::kF16:
      HWY_DYNAMIC_DISPATCH(row_to_half)(src, reinterpret_cast<std::uint16_t*>(dst), n);
      return;
    case ElementType::kBF16:
      HWY_DYNAMIC_DISPATCH(row_to_bfloat)(src, reinterpret_cast<std::uint16_t*>(dst), n);
      return;
    case ElementType::kQ8_0:
      quantize_row_q8_0(src, dst, n);
      return;
    case ElementType::kQ4_0:
      quantize_row_q4_0(src, dst, n);
      return;
  }
}

void load_row(const std::byte* src, ElementType type, float* dst, std::int64_t n) noexcept {
  HWY_DYNAMIC_DISPATCH(row_to_floats)(src, type, dst, n);
}

}  // namespace volvelle
#endif  // HWY_ONCE
