// Arithmetic of the reference nets: float64, float32, and float32 rounded to bfloat16 wherever a
// tensor would be stored.
//
// Order says in which order sums run. kFixed: one by one, so a row's result does not depend on its
// neighbours. kByShape: in a number of partial sums that depends on how many tokens are processed
// together, as tuned matrix kernels do; that is what makes a fold differ from one pass in the last
// bits.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace volvelle::testing {

struct Fp64 {
  using Value = double;
  static Value round(Value x) { return x; }
};

struct Fp32 {
  using Value = float;
  static Value round(Value x) { return x; }
};

struct Bf16 {
  using Value = float;
  // Nearest, ties to even, by adding just less than half of the last kept bit.
  static Value round(Value x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return std::bit_cast<float>((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
  }
};

enum class Order { kFixed, kByShape };

inline std::size_t n_partial_sums(Order order, std::size_t n_tokens) {
  if (order == Order::kFixed || n_tokens == 1) return 1;
  return n_tokens < 16 ? 2 : n_tokens < 100 ? 4 : 8;
}

/// y[n, n_out] = x[n, n_in] * w[n_in, n_out]; sums over n_in in `n_sums` interleaved partial sums,
/// then rounded.
template <class P>
std::vector<typename P::Value> linear(std::span<const typename P::Value> x,
                                      const std::vector<typename P::Value>& w, std::size_t n_in,
                                      std::size_t n_sums) {
  using Value = typename P::Value;
  const std::size_t n = x.size() / n_in;
  const std::size_t n_out = w.size() / n_in;
  std::vector<Value> y(n * n_out, Value(0));
  std::vector<Value> sum(n_out);
  for (std::size_t t = 0; t < n; ++t) {
    Value* const out = y.data() + t * n_out;
    for (std::size_t s = 0; s < n_sums; ++s) {
      std::fill(sum.begin(), sum.end(), Value(0));
      for (std::size_t i = s; i < n_in; i += n_sums) {
        const Value xi = x[t * n_in + i];
        const Value* const row = w.data() + i * n_out;
        for (std::size_t o = 0; o < n_out; ++o) sum[o] += xi * row[o];
      }
      for (std::size_t o = 0; o < n_out; ++o) out[o] += sum[o];
    }
    for (std::size_t o = 0; o < n_out; ++o) out[o] = P::round(out[o]);
  }
  return y;
}

}  // namespace volvelle::testing
