// Drift of the folded run against one full pass of plain llama.cpp, chunk by chunk (specs: KV-Fold section 4.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/stepper.hpp"

namespace volvelle {

struct DriftRow {
  std::int64_t depth = 0;        // chunk index from 0
  double nll_delta_mean = 0;     // signed: fold - full
  double nll_delta_abs = 0;      // mean of |fold - full|
  double logit_delta_max = 0;
  double kl_mean = 0;            // KL(full || fold)
  double nll_isolated = 0;       // mean NLL of the chunk alone, positions 0..C-1
  double advantage = 0;          // isolated - fold
  double argmax_agreement = 0;
  double kv_rel_l2 = 0;          // relative L2 between the fold's K and V rows and the full pass's, worst layer
  double seconds = 0;            // of this fold step
};

struct DriftOptions {
  std::int64_t chunk = 256;
  int n_threads = 0;
  int n_ubatch = 512;
  KvTypes kv;
};

/// A chunk's first target is scored with the last logits of the chunk before, so both runs score the same T - 1 targets.
Result<std::vector<DriftRow>> run_drift(const Model& model, std::span<const TokenId> tokens, const DriftOptions& options,
                                        const ProgressSink& progress);

}  // namespace volvelle
