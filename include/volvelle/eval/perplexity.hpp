// Perplexity of a text under several memories at once, and how far each is from the first.
//
//   nll_t = -log p(token t | tokens 0..t-1),  t = 1..T-1        perplexity = exp(mean nll)
//
// People compare caches by perplexity, which hides damage: a lost fact costs a few tokens' nll. So
// KL divergence, agreement of the most likely token and the paired nll difference stand beside it,
// all over the same T - 1 targets. Whatever the chunk, a target is scored by the row before it, the
// chunk's first one by the last row of the chunk before.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/stepper.hpp"

namespace volvelle {

struct PerplexityOptions {
  std::vector<MemorySpec> specs;  // the first is the reference; at least one
  bool against_engine = false;    // also llama.cpp's flash and non-flash paths
  std::int64_t chunk = 256;
  int n_threads = 0;
  int n_ubatch = 512;
  bool deterministic = false;
  CancelToken cancel;
};

struct PerplexityRow {
  std::string spec;  // or "llama flash", "llama no-flash"
  std::int64_t n_targets = 0;
  double perplexity = 0;
  double perplexity_error = 0;  // standard error, as if the targets were independent
  double nll_mean = 0;
  // Against the first spec:
  double nll_delta_mean = 0;   // this - first
  double nll_delta_error = 0;  // standard error of the paired difference
  double kl_mean = 0;          // KL(first || this)
  double kl_p99 = 0;
  double kl_max = 0;
  double top1_agreement = 0;
  std::int64_t bytes_per_token = 0;  // of keys and values
  std::vector<double> nll;           // [T - 1], in the order of the text
};

/// Needs at least two tokens. Cost: one pass over the text for each row, side by side, so that one
/// chunk's logits of each are held at a time.
Result<std::vector<PerplexityRow>> run_perplexity(const Model& model,
                                                  std::span<const TokenId> tokens,
                                                  const PerplexityOptions& options,
                                                  const ProgressSink& progress);

}  // namespace volvelle
