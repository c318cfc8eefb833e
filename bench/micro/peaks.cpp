// Peak loops: sums over memory for the read bandwidth, register-only multiply-adds for the FMA
// rate.
#include "peaks.hpp"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peaks.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/load-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

float read_loop(const std::byte* data, std::size_t bytes) {
  const FloatTag d;
  FloatVec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const float* p = reinterpret_cast<const float*>(data);
  const std::size_t n = bytes / sizeof(float);
  for (std::size_t i = 0; i + 64 <= n; i += 64) {
    for (std::size_t line = 0; line < 4; ++line) __builtin_prefetch(p + i + 2048 + 16 * line, 0, 2);
    for (std::int64_t j = 0; j < 64; j += 4 * kLanes) {
#pragma GCC unroll 4
      for (std::int64_t x = 0; x < 4; ++x) {
        const std::int64_t at = j + x * kLanes;
        if (at < 64) sums[x] = hn::Add(sums[x], hn::LoadU(d, p + i + at));
      }
    }
  }
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

float multiply_add_loop(std::int64_t steps, double* flops) {
  const FloatTag d;
  constexpr int kChains = 12;
  FloatVec acc[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) acc[c] = hn::Set(d, static_cast<float>(c));
  FloatVec a = hn::Set(d, 0.999f);
  FloatVec b = hn::Set(d, 0.001f);
  for (std::int64_t s = 0; s < steps; ++s) {
    // Without this the compiler may fold the constant operands.
    asm volatile("" : "+m"(*reinterpret_cast<char*>(&s)));
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = hn::MulAdd(acc[c], a, b);
  }
  FloatVec total = acc[0];
#pragma GCC unroll 12
  for (int c = 1; c < kChains; ++c) total = hn::Add(total, acc[c]);
  *flops = 2.0 * static_cast<double>(steps) * kChains * static_cast<double>(kLanes);
  return hn::GetLane(hn::SumOfLanes(d, total));
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(read_loop);
HWY_EXPORT(multiply_add_loop);

namespace bench {

float read_all(const std::byte* data, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(read_loop)(data, bytes);
}
float multiply_add(std::int64_t steps, double* flops) {
  return HWY_DYNAMIC_DISPATCH(multiply_add_loop)(steps, flops);
}

}  // namespace bench
}  // namespace volvelle
#endif  // HWY_ONCE
