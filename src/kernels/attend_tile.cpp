// Run-time dispatch of the tiled kernel.
#include "kernels/attend_tile.hpp"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_tile.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/attend_tile-inl.h"
// clang-format on

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(lanes_of_target);
HWY_EXPORT(pack_query_group);
HWY_EXPORT(pack_panels);
HWY_EXPORT(tile_group);

std::int64_t tile_lanes() noexcept { return HWY_DYNAMIC_DISPATCH(lanes_of_target)(); }

void pack_queries(const QueryGroup& group) noexcept {
  HWY_DYNAMIC_DISPATCH(pack_query_group)(group);
}

void pack_tile(const KeyValueRun* runs, std::int64_t n_runs, const TilePanels& panels) noexcept {
  HWY_DYNAMIC_DISPATCH(pack_panels)(runs, n_runs, panels);
}

void attend_tile_group(const TileGroup& group) noexcept { HWY_DYNAMIC_DISPATCH(tile_group)(group); }

}  // namespace volvelle
#endif  // HWY_ONCE
