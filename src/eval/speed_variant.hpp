// One competitor of a speed comparison: a way to run tokens whose state at a depth can be restored
// without computing it again.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "volvelle/eval/speed.hpp"

namespace volvelle {

struct SpeedSample {  // seconds; those of decode per token
  double prefill = 0;
  double prefill_attention = 0;  // of `prefill`, inside our attention
  double decode = 0;
  double attention = 0;  // of `decode`, inside our attention
};

class SpeedVariant {
 public:
  virtual ~SpeedVariant() = default;
  virtual std::string name() const = 0;
  virtual bool is_engine() const = 0;
  virtual std::int64_t depth() const = 0;
  /// Moves the state that restore() goes back to on by `tokens`.
  virtual Status advance(std::span<const TokenId> tokens) = 0;
  /// A stepper at depth(); what it does is forgotten at the next call.
  virtual Result<Stepper*> restore() = 0;
};

/// Our memory under `spec`. Steppers are clones, which share all rows.
Result<std::unique_ptr<SpeedVariant>> make_memory_variant(const Model& model,
                                                          const std::string& spec,
                                                          const SpeedOptions& options);
/// llama.cpp with a cache of `n_ctx` tokens, truncated back to the depth.
Result<std::unique_ptr<SpeedVariant>> make_engine_variant(const Model& model, std::int64_t n_ctx,
                                                          bool flash_attention,
                                                          const SpeedOptions& options);

/// Times a block of prefill and then the decoding of single tokens, both from the state at depth().
Result<SpeedSample> measure(SpeedVariant& variant, std::span<const TokenId> prefill,
                            std::span<const TokenId> decode);

}  // namespace volvelle
