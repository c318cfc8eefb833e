// Run-time dispatch of the code scan.
#include "kernels/code_scan.hpp"

#include <type_traits>

// One more target than elsewhere: products of bytes summed in one instruction (VNNI).
#define HWY_WANT_AVX3_DL 1

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/code_scan.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/code_scan-inl.h"
// clang-format on

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(scan_keys);
HWY_EXPORT(weigh_tile);
HWY_EXPORT(quantize_weights);
HWY_EXPORT(add_value_codes);
HWY_EXPORT(combine_weights);
HWY_EXPORT(error_shares);
HWY_EXPORT(exp2_array);
HWY_EXPORT(collect);

void scan_key_tile(const KeyScan& scan, const std::byte* tile, float* out,
                   std::ptrdiff_t out_stride) noexcept {
  HWY_DYNAMIC_DISPATCH(scan_keys)(scan, tile, out, out_stride);
}
void weigh_key_tile(const TileScores& scores, const std::uint16_t* scales, int begin, int end,
                    TileWeights* out) noexcept {
  HWY_DYNAMIC_DISPATCH(weigh_tile)(scores, scales, begin, end, out);
}
void exp2_all(const float* x, std::int64_t n, float shift, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(exp2_array)(x, n, shift, out);
}
void quantize_tile_weights(const float* weight, std::ptrdiff_t stride, int n_queries,
                           const std::uint16_t* scales, std::int8_t* w, TileBytes* out) noexcept {
  HWY_DYNAMIC_DISPATCH(quantize_weights)(weight, stride, n_queries, scales, w, out);
}
void combine_tile_weights(const float* weight, std::ptrdiff_t stride, const float* factor,
                          int n_queries, float* out, float* maxima) noexcept {
  HWY_DYNAMIC_DISPATCH(combine_weights)(weight, stride, factor, n_queries, out, maxima);
}
float sum_error_shares(ErrorShare share, const float* weight, const std::uint16_t* halves,
                       float factor, float constant, int begin) noexcept {
  return HWY_DYNAMIC_DISPATCH(error_shares)(share, weight, halves, factor, constant, begin);
}
std::int64_t collect_at_least(const float* values, const float* block_max, std::int64_t n_blocks,
                              float least, std::int32_t* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(collect)(values, block_max, n_blocks, least, out);
}
void add_value_tile(const ValueScan& scan, const std::byte* tile) noexcept {
  HWY_DYNAMIC_DISPATCH(add_value_codes)(scan, tile);
}

}  // namespace volvelle
#endif  // HWY_ONCE
