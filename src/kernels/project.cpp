// Run-time dispatch of the small products.
#include "kernels/project.hpp"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/project.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/project-inl.h"
// clang-format on

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(project);
HWY_EXPORT(combine);
HWY_EXPORT(dot_product);
HWY_EXPORT(quantize);
HWY_EXPORT(ratio);

void project_rows(const Projection& projection) noexcept {
  HWY_DYNAMIC_DISPATCH(project)(projection);
}
void add_combination(const float* x, int n, const float* basis, std::ptrdiff_t basis_stride,
                     int dim, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(combine)(x, n, basis, basis_stride, dim, out);
}
float dot(const float* a, const float* b, int dim) noexcept {
  return HWY_DYNAMIC_DISPATCH(dot_product)(a, b, dim);
}
void quantize_levels(const LevelRule& rule, const float* x, float inverse_scale,
                     std::uint8_t* levels) noexcept {
  HWY_DYNAMIC_DISPATCH(quantize)(rule, x, inverse_scale, levels);
}
float largest_ratio(const LevelRule& rule, const float* x) noexcept {
  return HWY_DYNAMIC_DISPATCH(ratio)(rule, x);
}

}  // namespace volvelle
#endif  // HWY_ONCE
