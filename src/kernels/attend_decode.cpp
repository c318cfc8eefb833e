// Run-time dispatch of the decode kernel.
#include "kernels/attend_decode.hpp"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_decode.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/attend_decode-inl.h"
// clang-format on

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(decode_block);

void attend_decode_block(const DecodeBlock& block) noexcept {
  HWY_DYNAMIC_DISPATCH(decode_block)(block);
}

}  // namespace volvelle
#endif  // HWY_ONCE
