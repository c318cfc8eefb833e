// Choosing the next token: llama.cpp's sampler chain, in the order of its own programs (top-k,
// top-p, min-p, temperature, draw), or greedy. The same seed and logits give the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "volvelle/base/ids.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

struct SamplerOptions {
  float temperature = 0.0f;  // <= 0: greedy, and the others below do nothing
  int top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.05f;
  std::uint32_t seed = 0;
};

/// Thread-compatible.
class Sampler {
 public:
  static Result<Sampler> create(const SamplerOptions& options);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();
  /// Samples from logits [n_vocab] and remembers the choice.
  TokenId sample(std::span<const float> logits);

 private:
  struct Impl;
  explicit Sampler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace volvelle
