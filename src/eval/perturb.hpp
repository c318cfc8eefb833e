// What damage to a memory costs: bands of keys removed or disturbed (at equal norm, slow, fast and
// random ones), and memories compressed after reading; retrieval of a fact, choice of a text's true
// continuation, perplexity (RoAM, section on perturbations and the abstract's compression table).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

struct PerturbOptions {
  std::int64_t tokens = 1024;  // of a document, a multiple of `chunk`
  std::int64_t chunk = 256;
  std::int64_t continuation = 128;         // tokens behind it that perplexity is measured on
  std::int64_t texts = 4;                  // documents, evenly spread over the book
  std::int64_t choices = 16;               // questions of the 4-way choice
  std::int64_t trials = 4;                 // haystacks for each distance; 0: no retrieval
  std::vector<double> sizes = {0.1, 0.4};  // of the disturbance, beside a key's norm
  std::uint64_t seed = 1;
  SessionOptions session;
};

struct PerturbRow {
  std::string damage;  // "none", "remove", "disturb", "compress"
  std::string what;    // "slow", "fast", "random"; "q4_0", "low_rank", "merge", "evict"
  double size = 0.0;
  double retrieval = 0.0;  // share of facts that are found
  std::int64_t n_retrieval = 0;
  double choice = 0.0;  // share of true continuations that are preferred; a quarter by chance
  std::int64_t n_choice = 0;
  double perplexity = 0.0;
  std::int64_t n_perplexity = 0;  // tokens
};

/// Rows: no damage first. The wired retriever is asked in its own haystacks and has neither choice
/// nor perplexity; other models need `book`. Fails by name for models whose rotation is not known.
Result<std::vector<PerturbRow>> run_perturb(const Model& model, std::string_view book,
                                            const PerturbOptions& options,
                                            const ProgressSink& progress);

}  // namespace volvelle
