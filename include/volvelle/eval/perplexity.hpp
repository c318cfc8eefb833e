// Perplexity of a text under several memories at once: the same tokens, the same targets, in
// lockstep, so that differences are the memories' and not the texts'. Every token but the first is
// scored with the logits of the token before it, also across chunks, so T tokens give T - 1 targets
// whatever the chunk size is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "volvelle/base/cancel.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle {

struct PerplexityRun {
  std::string name;  // a memory spec, or what else remembers
  std::unique_ptr<Stepper> stepper;
};

struct PerplexityRow {
  std::string name;
  std::int64_t n_targets = 0;
  double nll = 0;               // mean negative log likelihood in nats
  double nll_error = 0;         // standard error of that mean
  double perplexity = 0;        // exp(nll)
  double perplexity_error = 0;  // perplexity * nll_error
  Fidelity difference;          // to the first run
  double seconds = 0;           // of this run's steps
};

struct PerplexityOptions {
  std::int64_t chunk = 128;  // tokens per step; logits of a chunk are in memory, for every run
  CancelToken cancel;
};

/// Runs must be empty. At least two tokens and one run.
Result<std::vector<PerplexityRow>> measure_perplexity(std::vector<PerplexityRun>& runs,
                                                      std::span<const TokenId> tokens,
                                                      const PerplexityOptions& options,
                                                      const ProgressSink& progress);

}  // namespace volvelle
