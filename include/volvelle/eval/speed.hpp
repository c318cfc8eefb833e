// Speed at depth: variants alternate in one process, and ratios are paired within a repetition.
// Machines are shared and noisy: absolute times differ from run to run, ratios much less. Nothing
// here decides whether a test passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/stepper.hpp"

namespace volvelle {

struct SpeedOptions {
  std::vector<std::int64_t> depths;  // tokens already in memory
  std::int64_t n_decode = 32;        // tokens decoded per repetition
  std::int64_t n_prefill = 512;      // tokens prefilled at depth per repetition; 0: none
  int repetitions = 7;
  bool against_engine = true;  // llama.cpp's flash and non-flash paths
  int n_threads = 0;
  int n_ubatch = 512;
  bool deterministic = false;
  std::vector<std::string> specs;  // memory specs
  CancelToken cancel;
};

/// Medians over repetitions. Ratios are llama.cpp's faster path over ours in time, above 1 we are
/// faster, paired within each repetition; 0 for llama.cpp itself and where it was not measured.
struct SpeedRow {
  std::int64_t depth = 0;
  std::string spec;         // a memory spec, or "llama flash" / "llama no-flash"
  double prefill_tps = 0;   // tokens per second; 0 without prefill
  double decode_ms = 0;     // per token
  double attention_ms = 0;  // per decoded token, thread 0 inside our attention; 0 for llama.cpp
  double prefill_ratio = 0;
  double decode_ratio = 0;
  double attention_ratio = 0;       // estimated: (llama decode - our decode + our attention) / ours
  double prefill_attention_ms = 0;  // of the whole block, thread 0
  double prefill_attention_ratio = 0;  // estimated likewise
  double spread = 0;  // (max - min) / median of decode_ratio; of decode_ms without one
};

/// The state at a depth is computed once and not again between repetitions: llama.cpp's is
/// truncated back, ours is cloned (a window may have dropped rows that a truncated memory would
/// need). Decoded tokens are those of the text. Rows: for each depth, ascending, the specs in their
/// order, then llama.cpp's two paths, whose cache is f16 as is its default.
Result<std::vector<SpeedRow>> run_speed(const Model& model, std::span<const TokenId> tokens,
                                        const SpeedOptions& options, const ProgressSink& progress);

}  // namespace volvelle
