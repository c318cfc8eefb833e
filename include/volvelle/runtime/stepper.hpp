// One way to run tokens, whoever remembers: our memory or llama.cpp's own. Benches and audits
// compare two steppers and need not know which is which. Thread-compatible.
#pragma once

#include <memory>

#include "volvelle/runtime/session.hpp"

namespace volvelle {

class Stepper {
 public:
  virtual ~Stepper() = default;
  virtual Status step(std::span<const TokenId> tokens, Logits want) = 0;
  virtual std::span<const float> logits(std::int64_t i) const = 0;  // as Session::logits
  virtual std::int64_t length() const = 0;
  virtual Status truncate(std::int64_t length) = 0;
  virtual double take_attention_seconds() { return 0; }  // 0 where it can not be measured
};

/// Our memory. `session` must outlive the stepper.
std::unique_ptr<Stepper> make_memory_stepper(Session& session, ContextMemory memory);

/// llama.cpp's own cache of `n_ctx` cells, untouched by us: the reference.
struct EngineStepperOptions {
  std::int64_t n_ctx = 0;
  int n_threads = 0;
  int n_threads_batch = 0;
  int n_ubatch = 512;
  bool flash_attention = true;
  ElementType kv_type = ElementType::kF16;
  CaptureSink capture;  // keys and values only
};
Result<std::unique_ptr<Stepper>> make_engine_stepper(const Model& model,
                                                     const EngineStepperOptions& options);

}  // namespace volvelle
