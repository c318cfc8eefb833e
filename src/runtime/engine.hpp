// The narrow border to llama.cpp: owners of its objects, one-time initialisation, its log. Only
// src/runtime includes this, and only the public headers of the engine are used, so another engine
// with the same technique would need changes in this folder alone.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <memory>
#include <string>

#include "volvelle/base/log.hpp"

namespace volvelle::engine {

struct ModelDeleter {
  void operator()(llama_model* model) const noexcept { llama_model_free(model); }
};
struct ContextDeleter {
  void operator()(llama_context* context) const noexcept { llama_free(context); }
};
struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const noexcept { llama_sampler_free(sampler); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelDeleter>;
using ContextPtr = std::unique_ptr<llama_context, ContextDeleter>;
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

/// Owner of a llama_batch of up to `capacity` tokens, each of one sequence.
class Batch {
 public:
  explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  llama_batch& get() noexcept { return batch_; }
  void clear() noexcept { batch_.n_tokens = 0; }
  void add(int token, std::int64_t position, int sequence, bool logits) noexcept;

 private:
  llama_batch batch_;
};

/// Starts the engine once per process.
void initialize();
/// Where engine messages go, process-wide (the engine knows only one sink).
void set_log_sink(LogSink sink);
/// The engine's error messages since the last call, on one line; empty if there were none.
std::string take_errors();

/// What one engine context is made for.
struct ContextRequest {
  std::int64_t n_ctx = 0;
  int n_ubatch = 512;
  int n_sequences = 1;
  int n_threads = 1;
  int n_threads_batch = 1;
  bool flash_attention = true;
  ggml_type kv_type = GGML_TYPE_F16;
  ggml_backend_sched_eval_callback callback = nullptr;
  void* callback_data = nullptr;
  ggml_abort_callback abort = nullptr;
  void* abort_data = nullptr;
};
ContextPtr make_context(llama_model* model, const ContextRequest& request);

/// `n` or, for 0 and less, the number of hardware threads.
int thread_count(int n) noexcept;

}  // namespace volvelle::engine
