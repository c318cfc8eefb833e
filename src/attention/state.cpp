// Merging of states: scalar arithmetic, compiled once for all processors.
#include "attention/state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace volvelle {

RowStates place_states(float* memory, std::int64_t rows, std::ptrdiff_t o_stride) noexcept {
  return {memory, memory + pad_lanes(rows), memory + 2 * pad_lanes(rows), o_stride};
}

void clear_states(const RowStates& states, std::int64_t n) noexcept {
  std::fill_n(states.m, n, -std::numeric_limits<float>::infinity());
  std::fill_n(states.d, n, 0.0f);
  std::fill_n(states.o, n * states.o_stride, 0.0f);
}

void merge_state(const RowStates& into, const RowStates& from, int head_dim_v) noexcept {
  if (*from.d == 0.0f) return;
  if (*into.d == 0.0f) {
    *into.m = *from.m;
    *into.d = *from.d;
    std::copy_n(from.o, head_dim_v, into.o);
    return;
  }
  const float top = std::max(*into.m, *from.m);
  const float keep = std::exp2(*into.m - top);
  const float add = std::exp2(*from.m - top);
  for (int i = 0; i < head_dim_v; ++i) into.o[i] = into.o[i] * keep + from.o[i] * add;
  *into.d = *into.d * keep + *from.d * add;
  *into.m = top;
}

}  // namespace volvelle
