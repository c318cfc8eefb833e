// The law of the library: a partial softmax state and its merge.
//
//   state over a set of rows:  m = max s_i,  d = sum exp(s_i - m),  o = sum exp(s_i - m) v_i (s_i
//   natural-log scores) merge(a, b):               m = max(a.m, b.m);  o = a.o e^(a.m-m) + b.o
//   e^(b.m-m);  d likewise output:                    o / d
//
// merge is associative and commutative up to rounding and the empty state {0, -inf, 0} is neutral,
// so any split of the rows over chunks, threads, tiers, files or machines gives the same output.
// (Online softmax; the algebra is that of FlashInfer's attention states.)
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace volvelle {

/// View of one query head's state; `o` has head_dim_v entries and is not normalised.
struct AttentionStateView {
  float* o = nullptr;
  float* m = nullptr;
  float* d = nullptr;
};

/// Owner of one state. `T` is float in the library, double in references.
template <class T>
struct BasicAttentionState {
  std::vector<T> o;
  T m = -std::numeric_limits<T>::infinity();
  T d = 0;

  explicit BasicAttentionState(std::size_t head_dim_v) : o(head_dim_v, T(0)) {}
  bool empty() const noexcept { return d == T(0); }
};
using AttentionState = BasicAttentionState<float>;

/// a <- merge(a, b). Both have the same head_dim_v. Merging with an empty state changes nothing.
template <class T>
void merge_into(BasicAttentionState<T>& a, const BasicAttentionState<T>& b) noexcept {
  if (b.empty()) return;
  if (a.empty()) {
    a = b;
    return;
  }
  const T m = a.m > b.m ? a.m : b.m;
  const T scale_a = std::exp(a.m - m);
  const T scale_b = std::exp(b.m - m);
  for (std::size_t i = 0; i < a.o.size(); ++i) a.o[i] = a.o[i] * scale_a + b.o[i] * scale_b;
  a.d = a.d * scale_a + b.d * scale_b;
  a.m = m;
}

/// o / d; all zeros for the empty state.
template <class T>
std::vector<T> normalized(const BasicAttentionState<T>& state) {
  std::vector<T> out(state.o.size(), T(0));
  if (state.empty()) return out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = state.o[i] / state.d;
  return out;
}

}  // namespace volvelle
