// Ranges, names and contradictions of a memory spec; see memory_spec_check.hpp.
//
// Invariant: a spec that passes describes exactly one memory, so to_string() of it parses back to
// an equal spec and window_begin() divides by a positive block. Cost: nothing that grows with the
// text.
#include "memory/memory_spec_check.hpp"

#include <algorithm>
#include <cmath>

#include "base/result_macros.hpp"
#include "volvelle/memory/memory_index.hpp"

namespace volvelle::memory_spec_detail {

Error spec_error(std::string_view message) {
  std::string line = "memory spec: " + std::string(message);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return Error{ErrorCode::kInvalidArgument, std::move(line)};
}

namespace {

Status check_range(std::string_view what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return spec_error(std::string(what) + " must be " + std::to_string(low) + " to " +
                    std::to_string(high) + ", got " + std::to_string(value));
}

template <class Names>
Status check_name(std::string_view what, std::string_view name, const Names& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return {};
  return spec_error("unknown " + std::string(what) + " '" + std::string(name) +
                    "'; known: " + join(known));
}

Status check_window(const MemorySpec& spec) {
  if (spec.sink) VOLVELLE_RETURN_IF_ERROR(check_range("n of sink(n)", *spec.sink, 1, kMaxCount));
  if (!spec.window) return {};
  VOLVELLE_RETURN_IF_ERROR(check_range("n of window(n)", spec.window->tokens, 1, kMaxCount));
  return check_range("block of window(n,block=B)", spec.window->block, 1, kMaxCount);
}

Status check_topk(const TopkTerm& topk) {
  if (!topk.k && !topk.max_error) {
    return spec_error("topk needs k=N (rows to read) or max_error=E (as many as the bound needs)");
  }
  if (topk.k) VOLVELLE_RETURN_IF_ERROR(check_range("k of topk", *topk.k, 1, kMaxCount));
  if (topk.max_error && !(*topk.max_error > 0.0 && *topk.max_error < 1.0)) {
    return spec_error(
        "max_error of topk bounds a total variation and must lie between 0 and 1, "
        "both excluded");
  }
  if (topk.bits) VOLVELLE_RETURN_IF_ERROR(check_range("bits of topk", *topk.bits, 1, kMaxBits));
  if (topk.rank) VOLVELLE_RETURN_IF_ERROR(check_range("rank of topk", *topk.rank, 1, kMaxRank));
  if (topk.min)
    VOLVELLE_RETURN_IF_ERROR(check_range("min of topk", *topk.min, kMinIndexedTokens, kMaxCount));
  VOLVELLE_RETURN_IF_ERROR(check_name("index of topk", topk.index, kIndexNames));
  VOLVELLE_RETURN_IF_ERROR(check_name("tail of topk", topk.tail, kTopkTailNames));
  VOLVELLE_RETURN_IF_ERROR(check_name("cert of topk", topk.cert, kCertNames));
  return check_name("anchor of topk", topk.anchor, kAnchorNames);
}

Status check_tail(const TailTerm& tail) {
  VOLVELLE_RETURN_IF_ERROR(check_name("kind of tail", tail.kind, kTailNames));
  if (!tail.entries) return {};
  if (tail.kind == "none") return spec_error("tail(none) keeps nothing and takes no entries");
  return check_range("entries of tail", *tail.entries, 1, kMaxCount);
}

Status check_store(const StoreTerm& store) {
  if (store.kind == "mpi") {
    if (store.path.empty()) return {};
    return spec_error("store(mpi) takes no path");
  }
  if (store.kind != "disk") {
    return spec_error("unknown kind of store '" + store.kind + "'; known: disk=\"PATH\", mpi");
  }
  if (store.path.empty()) return spec_error("store(disk=\"PATH\") needs a path");
  const bool printable = std::all_of(store.path.begin(), store.path.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7F;
  });
  if (!printable) return spec_error("the path of store(disk=\"PATH\") has control characters");
  return {};
}

// Terms that need, or exclude, a window.
Status check_combination(const MemorySpec& spec) {
  if (!spec.full && !spec.window) {
    return spec_error(spec.sink ? "sink(n) needs window(n): 'sink(4)+window(4096)'"
                                : "says nothing about which tokens are kept; add 'full' or "
                                  "'sink(n)+window(n)'");
  }
  if (!spec.full) return {};
  const char* excluded = spec.window  ? "window"
                         : spec.sink  ? "sink"
                         : spec.tail  ? "tail"
                         : spec.store ? "store"
                                      : nullptr;
  if (excluded == nullptr) return {};
  return spec_error("'full' keeps every token in reach and contradicts '" + std::string(excluded) +
                    "'; leave one out");
}

}  // namespace

Status check_consistent(const MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_combination(spec));
  VOLVELLE_RETURN_IF_ERROR(check_window(spec));
  if (spec.topk) VOLVELLE_RETURN_IF_ERROR(check_topk(*spec.topk));
  if (spec.tail) VOLVELLE_RETURN_IF_ERROR(check_tail(*spec.tail));
  if (spec.store) VOLVELLE_RETURN_IF_ERROR(check_store(*spec.store));
  if (spec.kv) {
    VOLVELLE_RETURN_IF_ERROR(check_name("kv type", spec.kv->k, kKvTypeNames));
    VOLVELLE_RETURN_IF_ERROR(check_name("kv type", spec.kv->v, kKvTypeNames));
  }
  if (!spec.dense_layers) return {};
  const LayerRange& range = *spec.dense_layers;
  VOLVELLE_RETURN_IF_ERROR(check_range("first layer of dense_layers", range.first, 0, kMaxCount));
  return check_range("last layer of dense_layers", range.last, range.first, kMaxCount);
}

}  // namespace volvelle::memory_spec_detail
