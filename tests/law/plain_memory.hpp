// The reference memory: keys and values in plain vectors, attention by plain loops over positions.
//
//   out_i = sum_j softmax_j(q_i . k_j / sqrt(D)) v_j    over the positions j that `sees(i, j)`
//   allows
//
// It knows nothing of stores, rows, segments or tiles; what it computes is what the library must
// compute. Has the interface that toy_transformer.hpp expects of a memory. Cost: O(T^2 D).
#pragma once

#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "law/precision.hpp"
#include "volvelle/base/half.hpp"
#include "volvelle/base/ids.hpp"

namespace volvelle::testing {

struct HeadShape {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
};

template <class P>
class PlainMemory {
 public:
  using Value = typename P::Value;
  using Sees = std::function<bool(std::int64_t query, std::int64_t key)>;

  PlainMemory(std::size_t n_layers, HeadShape shape, Order order = Order::kFixed)
      : shape_(shape), order_(order), k_(n_layers), v_(n_layers) {}

  /// Which earlier positions a query sees; all of them unless set.
  void restrict_to(Sees sees) { sees_ = std::move(sees); }
  /// Rounds stored rows to half precision.
  void store_halves() { halves_ = true; }

  void begin(std::span<const TokenId> tokens) { n_new_ = tokens.size(); }
  std::int64_t position(std::size_t i) const { return static_cast<std::int64_t>(length_ + i); }
  void commit() { length_ += n_new_; }

  void attend(std::size_t layer, std::span<const Value> q, std::span<const Value> k,
              std::span<const Value> v, std::span<Value> out) {
    for (const Value x : k) k_[layer].push_back(stored(x));
    for (const Value x : v) v_[layer].push_back(stored(x));
    for (std::size_t i = 0; i < n_new_; ++i) {
      for (int head = 0; head < shape_.n_heads; ++head) attend_one(layer, i, head, q, out);
    }
  }

 private:
  Value stored(Value x) const {
    return halves_ ? Value(f16_to_f32(f32_to_f16(static_cast<float>(x)))) : x;
  }
  const Value* row(const std::vector<Value>& rows, std::size_t j, int head) const {
    const int kv_head = head * shape_.n_kv_heads / shape_.n_heads;
    return rows.data() +
           (j * static_cast<std::size_t>(shape_.n_kv_heads) + static_cast<std::size_t>(kv_head)) *
               static_cast<std::size_t>(shape_.head_dim);
  }

  void attend_one(std::size_t layer, std::size_t i, int head, std::span<const Value> q,
                  std::span<Value> out) const {
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    const std::size_t at =
        (i * static_cast<std::size_t>(shape_.n_heads) + static_cast<std::size_t>(head)) * dim;
    const std::size_t query = length_ + i;
    const Value scale = Value(1) / std::sqrt(Value(shape_.head_dim));
    std::vector<std::size_t> keys;
    std::vector<Value> scores;
    for (std::size_t j = 0; j <= query; ++j) {
      if (sees_ && !sees_(static_cast<std::int64_t>(query), static_cast<std::int64_t>(j))) continue;
      const Value* const k = row(k_[layer], j, head);
      Value score = 0;
      for (std::size_t d = 0; d < dim; ++d) score += q[at + d] * k[d];
      keys.push_back(j);
      scores.push_back(score * scale);
    }
    const Value max = *std::max_element(scores.begin(), scores.end());
    const std::size_t n_sums = n_partial_sums(order_, n_new_);
    std::vector<Value> o(dim, Value(0));
    std::vector<Value> part(dim);
    Value d_total = 0;
    for (std::size_t s = 0; s < n_sums; ++s) {
      std::fill(part.begin(), part.end(), Value(0));
      Value d_part = 0;
      for (std::size_t r = s; r < keys.size(); r += n_sums) {
        const Value weight = std::exp(scores[r] - max);
        const Value* const v = row(v_[layer], keys[r], head);
        d_part += weight;
        for (std::size_t d = 0; d < dim; ++d) part[d] += weight * v[d];
      }
      d_total += d_part;
      for (std::size_t d = 0; d < dim; ++d) o[d] += part[d];
    }
    for (std::size_t d = 0; d < dim; ++d) out[at + d] = P::round(o[d] / d_total);
  }

  HeadShape shape_;
  Order order_;
  Sees sees_;
  bool halves_ = false;
  std::size_t length_ = 0;
  std::size_t n_new_ = 0;
  std::vector<std::vector<Value>> k_;  // [layer][position, n_kv_heads, head_dim]
  std::vector<std::vector<Value>> v_;
};

}  // namespace volvelle::testing
