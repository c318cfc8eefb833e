// A small transformer with seeded random weights: RMSNorm, rotary positions, grouped queries, gated
// MLP.
//
// Weights have standard deviation 1.5 / sqrt(fan in), so that attention is peaky: with the usual
// small initialisation it is nearly uniform and several memory bugs hide. `P` is the arithmetic
// (precision.hpp), `Memory` anything with
//   begin(tokens); position(i); attend(layer, q, k, v, out); commit()         q, k already rotated;
//   rows [n, heads, dim]
// Every sum but attention's runs in the order that `Order` says.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "law/plain_memory.hpp"
#include "law/precision.hpp"
#include "volvelle/attention/fold.hpp"

namespace volvelle::testing {

inline constexpr HeadShape kToyHeads = {4, 2, 32};
inline constexpr std::size_t kToyLayers = 4;
inline constexpr std::size_t kToyWidth = 128;  // 4 heads of 32
inline constexpr std::size_t kToyHidden = 160;
inline constexpr std::size_t kToyVocab = 96;

template <class P>
struct ToyNet {
  using Matrix = std::vector<typename P::Value>;  // [in, out]
  struct Layer {
    Matrix q, k, v, o, gate, up, down;
  };
  Matrix embedding;
  std::vector<Layer> layers;
  Matrix head;
};

/// The same weights for every arithmetic, drawn in float64 and rounded.
template <class P>
ToyNet<P> make_toy(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto matrix = [&](std::size_t n_in, std::size_t n_out, double std_dev) {
    typename ToyNet<P>::Matrix w(n_in * n_out);
    for (auto& x : w) {
      x = P::round(static_cast<typename P::Value>(static_cast<float>(normal(random) * std_dev)));
    }
    return w;
  };
  const auto dense = [&](std::size_t n_in, std::size_t n_out) {
    return matrix(n_in, n_out, 1.5 / std::sqrt(static_cast<double>(n_in)));
  };
  const std::size_t kv = static_cast<std::size_t>(kToyHeads.n_kv_heads * kToyHeads.head_dim);
  ToyNet<P> net;
  net.embedding = matrix(kToyVocab, kToyWidth, 1.0);
  for (std::size_t layer = 0; layer < kToyLayers; ++layer) {
    net.layers.push_back({dense(kToyWidth, kToyWidth), dense(kToyWidth, kv), dense(kToyWidth, kv),
                          dense(kToyWidth, kToyWidth), dense(kToyWidth, kToyHidden),
                          dense(kToyWidth, kToyHidden), dense(kToyHidden, kToyWidth)});
  }
  net.head = dense(kToyWidth, kToyVocab);
  return net;
}

template <class P>
std::vector<typename P::Value> rms_norm(const std::vector<typename P::Value>& x) {
  using Value = typename P::Value;
  std::vector<Value> y(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += kToyWidth) {
    Value square = 0;
    for (std::size_t i = 0; i < kToyWidth; ++i) square += x[begin + i] * x[begin + i];
    const Value scale = Value(1) / std::sqrt(square / Value(kToyWidth) + Value(1e-6));
    for (std::size_t i = 0; i < kToyWidth; ++i) y[begin + i] = P::round(x[begin + i] * scale);
  }
  return y;
}

/// Rotates the pairs (2f, 2f + 1) of every head by position * 10000^(-2f / head_dim).
template <class P, class Memory>
void rotate(std::vector<typename P::Value>& rows, std::size_t n_tokens, const Memory& memory) {
  using Value = typename P::Value;
  const auto dim = static_cast<std::size_t>(kToyHeads.head_dim);
  const std::size_t width = rows.size() / n_tokens;
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    const std::size_t d = i % width % dim;
    const double frequency = std::pow(10000.0, -static_cast<double>(d) / static_cast<double>(dim));
    const double angle = static_cast<double>(memory.position(i / width)) * frequency;
    const auto c = static_cast<Value>(std::cos(angle));
    const auto s = static_cast<Value>(std::sin(angle));
    const Value a = rows[i];
    const Value b = rows[i + 1];
    rows[i] = P::round(a * c - b * s);
    rows[i + 1] = P::round(a * s + b * c);
  }
}

template <class P>
void add(std::vector<typename P::Value>& x, const std::vector<typename P::Value>& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = P::round(x[i] + y[i]);
}

/// One step of the fold: reads `tokens`, returns their logits [n, kToyVocab].
template <class P, class Memory>
std::vector<typename P::Value> toy_step(const ToyNet<P>& net, Memory& memory,
                                        std::span<const TokenId> tokens, Order order) {
  using Value = typename P::Value;
  const std::size_t n = tokens.size();
  const std::size_t n_sums = n_partial_sums(order, n);
  const auto project = [&](const std::vector<Value>& x, const std::vector<Value>& w,
                           std::size_t n_in) { return linear<P>(x, w, n_in, n_sums); };
  std::vector<Value> x;
  for (const TokenId token : tokens) {
    const auto row = net.embedding.begin() + static_cast<std::ptrdiff_t>(kToyWidth) * token;
    x.insert(x.end(), row, row + kToyWidth);
  }
  memory.begin(tokens);
  for (std::size_t l = 0; l < kToyLayers; ++l) {
    const auto& layer = net.layers[l];
    const std::vector<Value> a = rms_norm<P>(x);
    std::vector<Value> q = project(a, layer.q, kToyWidth);
    std::vector<Value> k = project(a, layer.k, kToyWidth);
    const std::vector<Value> v = project(a, layer.v, kToyWidth);
    rotate<P>(q, n, memory);
    rotate<P>(k, n, memory);
    std::vector<Value> mixed(n * kToyWidth);
    memory.attend(l, q, k, v, mixed);
    add<P>(x, project(mixed, layer.o, kToyWidth));

    const std::vector<Value> b = rms_norm<P>(x);
    std::vector<Value> gate = project(b, layer.gate, kToyWidth);
    const std::vector<Value> up = project(b, layer.up, kToyWidth);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      gate[i] = P::round(gate[i] / (Value(1) + std::exp(-gate[i])) * up[i]);
    }
    add<P>(x, project(gate, layer.down, kToyHidden));
  }
  memory.commit();
  return project(rms_norm<P>(x), net.head, kToyWidth);
}

/// The whole text in chunks; logits [T, kToyVocab].
template <class P, class Memory>
std::vector<typename P::Value> toy_fold(const ToyNet<P>& net, Memory& memory,
                                        std::span<const TokenId> tokens, std::int64_t chunk,
                                        Order order = Order::kFixed) {
  std::vector<typename P::Value> logits;
  const auto step = [&](Memory& state, std::span<const TokenId> part, bool) -> Status {
    const auto rows = toy_step(net, state, part, order);
    logits.insert(logits.end(), rows.begin(), rows.end());
    return {};
  };
  fold_run(memory, tokens, chunk, step).value();
  return logits;
}

inline std::vector<TokenId> random_tokens(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % kToyVocab);
  return tokens;
}

/// -log softmax(row)[target] in float64.
template <class Value>
double nll(std::span<const Value> row, TokenId target) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const Value x : row) sum += std::exp(static_cast<double>(x) - max);
  return max + std::log(sum) - static_cast<double>(row[static_cast<std::size_t>(target)]);
}

/// NLL of tokens[p + 1] from the logits at p, for all T - 1 targets in order.
template <class Value>
std::vector<double> nll_of_targets(const std::vector<Value>& logits,
                                   std::span<const TokenId> tokens) {
  std::vector<double> out;
  const std::span<const Value> rows(logits);
  for (std::size_t p = 0; p + 1 < tokens.size(); ++p) {
    out.push_back(nll(rows.subspan(p * kToyVocab, kToyVocab), tokens[p + 1]));
  }
  return out;
}

template <class A, class B>
double max_difference(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    // Written so that a NaN counts as the worst difference.
    if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
  }
  return worst;
}

}  // namespace volvelle::testing
