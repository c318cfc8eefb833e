// A document is read by a left fold over chunks: state_{t+1} = step(state_t, chunk_t).
//
// With a complete memory, global positions and a causal mask the fold computes the same function as
// one pass over the whole text (KV-Fold, arXiv 2605.12471; proof in docs/numerics.md), so chunking
// changes rounding only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "volvelle/base/ids.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

/// Calls step(state, chunk, is_last) for consecutive chunks of at most `chunk` tokens; the last one
/// may be shorter. Stops at the first error and returns it; the state is then what the last good
/// step left. An empty text is no step at all.
template <class State, class Step>
Status fold_run(State& state, std::span<const TokenId> tokens, std::int64_t chunk, Step&& step) {
  if (chunk < 1)
    return Error{ErrorCode::kInvalidArgument,
                 "fold: chunk must be at least 1 token, got " + std::to_string(chunk)};
  const auto n = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t begin = 0; begin < n; begin += chunk) {
    const std::int64_t size = std::min(chunk, n - begin);
    Status status =
        step(state, tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)),
             begin + size == n);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace volvelle
