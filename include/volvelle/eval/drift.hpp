// Drift of the folded run against one full pass of plain llama.cpp, chunk by chunk. (KV-Fold, arXiv
// 2605.12471, section on drift; the advantage is over the isolated chunk.) An exact fold differs by
// rounding only: a drift that does not shrink with precision is a bug.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/stepper.hpp"

namespace volvelle {

struct DriftRow {
  std::int64_t depth = 0;      // chunk index from 0
  std::int64_t n_targets = 0;  // scored tokens: the chunk's, without the text's first
  double nll_delta_mean = 0;   // signed: fold - full
  double nll_delta_abs = 0;    // mean of |fold - full|
  double logit_delta_max = 0;
  double kl_mean = 0;  // KL(full || fold)
  /// Mean NLL of the chunk alone at positions 0..C-1: its tokens but the first, which nothing
  /// predicts there. The advantage is isolated - fold, both over those tokens.
  double nll_isolated = 0;
  double advantage = 0;
  double argmax_agreement = 0;
  double kv_rel_l2 = 0;  // relative L2 between both runs' K and V rows of the chunk, worst layer
  double seconds = 0;    // of this fold step
};

struct DriftOptions {
  std::int64_t chunk = 256;
  int n_threads = 0;
  int n_ubatch = 512;
  KvTypes kv;  // of our memory; llama.cpp's cache is f16 if both are f16, else f32
  CancelToken cancel;
};

/// A chunk's first target is scored with the last logits of the chunk before, so both runs score
/// the same T - 1 targets. Every chunk, the last included, must have at least two tokens.
Result<std::vector<DriftRow>> run_drift(const Model& model, std::span<const TokenId> tokens,
                                        const DriftOptions& options, const ProgressSink& progress);

}  // namespace volvelle
