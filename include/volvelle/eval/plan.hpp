// What a model with a memory of some length will need: bytes by kind, time per token, and the
// largest context that fits. Bytes of rows are a closed form; those of program and engine are
// measured in this process after one ubatch, because the engine's buffers do not grow with the
// memory. Times are estimated: a short run gives what does not depend on depth, and our own
// attention is timed at the planned depth on rows of the model's shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "volvelle/base/cancel.hpp"
#include "volvelle/memory/context_memory.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {

struct PlanOptions {
  std::int64_t n_tokens = 0;  // planned length of the memory, 1 to the model's context
  MemorySpec spec = MemorySpec::full_memory();
  int n_threads = 0;
  int n_threads_batch = 0;
  int n_ubatch = 512;
  std::uint64_t ram_bytes = 0;  // 0: what the system says is available, and what is used here now
  CancelToken cancel;
};

struct Plan {
  std::uint64_t weight_bytes = 0;   // the model file, as it is mapped
  std::uint64_t row_bytes = 0;      // keys and values of the planned tokens
  std::uint64_t index_bytes = 0;    // codes of the planned tokens, of a spec with topk
  std::uint64_t scratch_bytes = 0;  // of attention
  std::uint64_t program_bytes = 0;  // program, vocabulary and the engine's buffers, measured
  std::uint64_t total_bytes = 0;
  std::uint64_t ram_bytes = 0;
  std::int64_t largest_context = 0;  // tokens that fit into ram_bytes; at most the model's context
  double decode_ms = 0;              // per token behind the planned tokens, estimated
  double attention_ms = 0;           // of decode_ms
  double fold_seconds = 0;           // reading the planned tokens, estimated
  /// Of a spec with topk: the length, doubled from 1,024 up to the planned one, from which on reads
  /// through the index measured faster than exact ones; 0: none. For `min` of the spec.
  std::int64_t crossover = 0;
  double code_bytes_per_token = 0;  // of an index, once it is used
  std::int64_t index_from = 0;      // tokens
};

/// Bytes of rows that a memory has at most while it reads `n_tokens` tokens.
std::uint64_t planned_row_bytes(const StoreLayout& layout, const PlanOptions& options,
                                std::int64_t n_tokens);

/// Runs one ubatch and a few decoding steps of the model. Errors: a length out of range, a system
/// without /proc, no memory for the rows of one layer.
Result<Plan> make_plan(const Model& model, const PlanOptions& options);

}  // namespace volvelle
