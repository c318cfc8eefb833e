// Run-time dispatch of the last step of a row.
#include "kernels/scale_row.hpp"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scale_row.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/scale_row-inl.h"
// clang-format on

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(scaled_row);

bool scale_row(const float* o, float factor, std::int64_t n, float* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(scaled_row)(o, factor, n, out);
}

}  // namespace volvelle
#endif  // HWY_ONCE
