// Needle in a haystack on the wired retriever: recall by distance, counted in chunks, between a
// fact and its question. The retriever recalls by construction, so every miss is a defect of the
// memory. A miss is answered "none", never by a random value.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/eval/cost_law.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// A memory in place of the one that was read, for studies of compressed memories.
using MemoryFilter = std::function<Result<ContextMemory>(ContextMemory)>;

struct NeedleOptions {
  std::int64_t tokens = 8192;           // T; the question stands at position T
  std::int64_t chunk = 256;             // C
  std::vector<std::int64_t> distances;  // d = question's chunk - needle's chunk, 1 <= d <= T / C
  std::int64_t trials = 4;
  std::uint64_t seed = 1;
  std::int64_t absent = 0;    // keys a trial that the haystack does not hold, asked as well
  bool isolated = false;      // the questions alone, without the haystack: what guessing gives
  MemoryFilter after_fold{};  // of each haystack's memory, before it is asked
};

/// Distance 0 is the row of the absent keys, behind the others; there only "none" is correct.
struct NeedleRow {
  std::int64_t distance = 0;
  std::int64_t trials = 0;
  std::int64_t correct = 0;
  std::int64_t none = 0;  // answered "none": what the retriever says where it finds no fact
};

/// Whether the model has the retriever's vocabulary.
bool is_wired_retriever(const Model& model);

struct NeedleResult {
  std::vector<NeedleRow> rows;
  std::vector<ChunkTime> chunks;  // of all folds; empty if isolated
};

/// A trial folds one haystack that holds a needle for every distance, each with its own key, and 8
/// other facts; each needle is asked for from a clone of that memory.
/// Needs a model with the retriever's key-value vocabulary (k00.., v00.., f00..); others are
/// refused by name.
Result<NeedleResult> run_needle(const Model& model, Session& session, const MemorySpec& spec,
                                const NeedleOptions& options, const ProgressSink& progress);

}  // namespace volvelle
