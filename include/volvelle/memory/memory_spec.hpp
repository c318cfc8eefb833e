// Memory specs: one string describes a memory, in flags, files, reports and benchmark lines.
//
//   'full'   'sink(4)+window(4096)'   'full+topk(k=128,index=saki,bits=3)'   'full+kv(k=f32,v=f32)'
//   ...
//
// Terms joined by '+', each once; the whole grammar is parsed, and require_supported() refuses by
// name what this version does not build yet. to_string() is canonical: fixed term and key order,
// defaults left out; parse(to_string(x)) == x.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "volvelle/base/element_type.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

/// window(n[,block=B]): query t sees the sinks and [E(t), t], E(t) = max(n_sink, B * floor((t + 1 -
/// n) / B)).
struct WindowTerm {
  std::int64_t tokens = 0;
  std::int64_t block = 64;
  bool operator==(const WindowTerm&) const = default;
};

/// topk(...): read few rows exactly, found through an index.
struct TopkTerm {
  std::optional<std::int64_t> k;
  std::optional<double> max_error;  // bound on the total variation of each read's attention weights
  std::string index = "saki";       // saki | pca | dims | exact
  std::optional<int> bits;
  std::optional<int> rank;
  std::string tail = "coded";       // coded | none
  std::string cert = "none";        // exact | dither | none
  std::string anchor = "token";     // token | block: what keys are coded relative to
  std::optional<std::int64_t> min;  // tokens of a memory below which all keys are read
  bool operator==(const TopkTerm&) const = default;
};

/// tail(kind,...): constant-size memory of what left the window.
struct TailTerm {
  std::string kind;  // summary | outer | koopman | mean | none
  std::optional<std::int64_t> entries;
  bool operator==(const TailTerm&) const = default;
};

/// store(disk="PATH") or store(mpi): where rows behind the window stay.
struct StoreTerm {
  std::string kind;  // disk | mpi
  std::string path;
  bool operator==(const StoreTerm&) const = default;
};

/// Storage types as written; names that this version can not store are refused by
/// require_supported().
struct KvTerm {
  std::string k = "f16";
  std::string v = "f16";
  bool operator==(const KvTerm&) const = default;
};

struct LayerRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  bool operator==(const LayerRange&) const = default;
};

struct MemorySpec {
  bool full = false;
  std::optional<std::int64_t> sink;
  std::optional<WindowTerm> window;
  std::optional<TopkTerm> topk;
  std::optional<TailTerm> tail;
  std::optional<StoreTerm> store;
  bool swa_full = false;  // 'swa(full)': layers with a sliding window keep all their rows
  std::optional<KvTerm> kv;
  std::optional<LayerRange> dense_layers;  // 'dense_layers=0-1'
  bool operator==(const MemorySpec&) const = default;

  static MemorySpec full_memory();
  /// True if nothing is ever dropped.
  bool keeps_everything() const noexcept { return full || store.has_value(); }
};

/// Errors name the term or key, and list the known ones.
Result<MemorySpec> parse_memory_spec(std::string_view text);
std::string to_string(const MemorySpec& spec);

/// Refuses, by name, every term and storage type that is part of the grammar but not built yet.
Status require_supported(const MemorySpec& spec);

/// Storage types of a supported spec (f16 where the spec does not say).
struct KvTypes {
  ElementType k = ElementType::kF16;
  ElementType v = ElementType::kF16;
};
Result<KvTypes> kv_types(const MemorySpec& spec);

/// First row after the sinks that a query at position t sees; see WindowTerm. 0 sinks and no
/// window: 0.
std::int64_t window_begin(const MemorySpec& spec, std::int64_t t) noexcept;

}  // namespace volvelle
