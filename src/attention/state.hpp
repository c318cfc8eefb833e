// Softmax states of several query rows as the kernels keep them: m in base 2, o not normalised.
//
// merge: m = max(a.m, b.m), o = a.o 2^(a.m-m) + b.o 2^(b.m-m), d likewise. Where results must not
// depend on the threads, merges go in ascending order of rows; this is the only code that does
// them, so a merge has the same bits wherever it happens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runs.hpp"

namespace volvelle {

struct RowStates {
  float* m = nullptr;
  float* d = nullptr;
  float* o = nullptr;
  std::ptrdiff_t o_stride = 0;

  RowStates from(std::int64_t row) const noexcept {
    return {m + row, d + row, o + row * o_stride, o_stride};
  }
};

/// Lays out `rows` states of `o_stride` values each at `memory`, which has states_floats() of room;
/// the o of each stays aligned if memory is.
RowStates place_states(float* memory, std::int64_t rows, std::ptrdiff_t o_stride) noexcept;
constexpr std::int64_t states_floats(std::int64_t rows, std::int64_t o_stride) noexcept {
  return 2 * pad_lanes(rows) + rows * o_stride;
}

/// Makes n states empty.
void clear_states(const RowStates& states, std::int64_t n) noexcept;

/// into <- merge(into, from) for the first row of both. An empty `from` changes nothing, an empty
/// `into` becomes `from` bit by bit.
void merge_state(const RowStates& into, const RowStates& from, int head_dim_v) noexcept;

}  // namespace volvelle
