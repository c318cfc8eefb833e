// Needle in a haystack with a trained model: a fact in a stretch of a real book, asked for behind
// it. A miss may be the model's; so the same haystacks are run under several memories, and beside
// them stands the question alone. (KV-Fold, arXiv 2605.12471, needle protocol.)
#pragma once

#include <string_view>

#include "volvelle/eval/needle.hpp"

namespace volvelle {

struct NaturalNeedleOptions {
  std::int64_t tokens = 4096;           // T; the question begins at position T
  std::int64_t chunk = 256;             // C; T must be a multiple of it
  std::vector<std::int64_t> distances;  // each in haystacks of its own; none if needles > 1
  std::int64_t needles = 1;             // facts a haystack; more than one: in evenly spaced chunks
  std::int64_t trials = 4;
  std::uint64_t seed = 1;
  std::int64_t n_predict = 30;
  bool chat = true;       // the model's chat template; else the question is a sentence's beginning
  bool isolated = false;  // the questions alone
  MemoryFilter after_fold{};  // of each haystack's memory, before it is asked
};

/// The distances that will be asked at: those of the options, or those of evenly spaced needles.
std::vector<std::int64_t> needle_distances(const NaturalNeedleOptions& options);

/// Right is an answer, decoded greedily, whose first number of five digits is the planted one;
/// `none` counts answers without such a number. Haystacks depend on options and trial only, not on
/// the memory.
Result<NeedleResult> run_natural_needle(Session& session, const MemorySpec& spec,
                                        std::string_view book, const NaturalNeedleOptions& options,
                                        const ProgressSink& progress);

}  // namespace volvelle
