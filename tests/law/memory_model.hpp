// What a context memory must contain, kept the simple way: a list of tokens and, for every layer,
// which of their rows may be gone. Written down from the definitions and computed by counting over
// positions; it knows nothing of groups, rows, stores or blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "volvelle/memory/context_memory.hpp"

namespace volvelle::testing {

/// What queries of one layer see. A layer with a window of W tokens of its own sees (t - n, t], n
/// the narrower of W and the spec's window; another one the sinks and [E(t), t] of the spec.
struct Sight {
  std::int64_t sinks = 0;
  std::int64_t tokens = 0;  // 0: everything
  std::int64_t block = 1;
  std::int64_t spare = 0;  // tokens that can be taken back are at least as many
  bool drops = false;

  Sight(const MemorySpec& spec, const LayerShape& layer) {
    if (spec.window) {
      sinks = spec.sink.value_or(0);
      tokens = spec.window->tokens;
      block = spec.window->block;
      spare = spec.window->block;
      drops = true;
    }
    if (layer.window == 0) return;
    sinks = 0;
    tokens = tokens > 0 ? std::min(tokens, layer.window) : layer.window;
    block = 1;
    spare = 256;
    drops = !spec.swa_full;
  }

  /// E(t), by counting blocks: the last border that leaves at least `tokens` positions.
  std::int64_t begin(std::int64_t t) const {
    std::int64_t e = 0;
    while (tokens > 0 && t + 1 - (e + block) >= tokens) e += block;
    return std::max(e, sinks);
  }
  bool sees(std::int64_t t, std::int64_t p) const {
    return p <= t && (tokens == 0 || p < sinks || p >= begin(t));
  }
};

class MemoryModel {
 public:
  MemoryModel(const StoreLayout& layout, const MemorySpec& spec) {
    for (const LayerShape& shape : layout.layers) {
      layers_.push_back({Sight(spec, shape), shape.n_kv_heads > 0, {}});
    }
  }

  const std::vector<TokenId>& tokens() const { return tokens_; }
  std::int64_t length() const { return static_cast<std::int64_t>(tokens_.size()); }
  bool stores(std::size_t layer) const { return layers_[layer].stores; }
  std::size_t n_layers() const { return layers_.size(); }

  void append(std::span<const TokenId> tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    for (Layer& layer : layers_) {
      layer.dropped.resize(tokens_.size());
      if (!layer.sight.drops) continue;
      const std::int64_t end = layer.sight.begin(length()) - layer.sight.spare;
      for (std::int64_t p = layer.sight.sinks; p < end; ++p)
        layer.dropped[static_cast<std::size_t>(p)] = true;
    }
  }

  /// Whether all that the next query would see is still there.
  bool can_truncate(std::int64_t length) const {
    for (const Layer& layer : layers_) {
      if (!layer.stores) continue;
      const std::int64_t begin = layer.sight.begin(length);
      for (std::int64_t p = begin; p < length; ++p) {
        if (layer.dropped[static_cast<std::size_t>(p)]) return false;
      }
    }
    return true;
  }
  void truncate(std::int64_t length) {
    tokens_.resize(static_cast<std::size_t>(length));
    for (Layer& layer : layers_) layer.dropped.resize(static_cast<std::size_t>(length));
  }

  /// Positions that the query at `t` sees, ascending.
  std::vector<std::int64_t> seen(std::size_t layer, std::int64_t t) const {
    const Sight& sight = layers_[layer].sight;
    std::vector<std::int64_t> out;
    const std::int64_t begin = sight.begin(t);
    for (std::int64_t p = 0; p < std::min(sight.sinks, t + 1); ++p) out.push_back(p);
    for (std::int64_t p = begin; p <= t; ++p) out.push_back(p);
    return out;
  }
  /// Positions whose rows are there for certain, ascending.
  std::vector<Position> kept(std::size_t layer) const {
    std::vector<Position> out;
    for (std::int64_t p = 0; p < length(); ++p) {
      if (!layers_[layer].dropped[static_cast<std::size_t>(p)]) out.emplace_back(p);
    }
    return out;
  }
  /// A file must hold tokens and, for every layer, rows.
  bool can_be_saved() const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].stores && kept(i).empty()) return false;
    }
    return true;
  }

 private:
  struct Layer {
    Sight sight;
    bool stores = false;
    std::vector<char> dropped;  // [n_tokens]
  };
  std::vector<TokenId> tokens_;
  std::vector<Layer> layers_;
};

}  // namespace volvelle::testing
