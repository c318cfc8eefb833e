// Choosing the next token: llama.cpp's samplers, under its names, with its defaults (but for the
// temperature: here 0, greedy) and in the order of its own programs. The same seed, prompt and
// logits give the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "volvelle/base/ids.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

class Model;

/// What may stand in the chain, in llama.cpp's default order (adaptive-p is not part of it).
enum class SamplerStep {
  kPenalties,
  kDry,
  kTopNSigma,
  kTopK,
  kTypical,
  kTopP,
  kMinP,
  kXtc,
  kTemperature,
  kAdaptiveP,
};
/// llama.cpp's name: "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
/// "temperature", "adaptive_p".
const char* to_string(SamplerStep step) noexcept;
std::vector<SamplerStep> default_sampler_order();
/// "penalties;top_k;temperature"; dashes, missing underscores and llama.cpp's short names are
/// understood. An unknown or repeated name is an error that lists the known ones.
Result<std::vector<SamplerStep>> parse_sampler_order(std::string_view text);

struct LogitBias {
  TokenId token = 0;
  float bias = 0;  // -infinity forbids the token
};

struct SamplerOptions {
  float temperature = 0.0f;  // 0: greedy (see is_greedy)
  std::uint32_t seed = 0;
  int top_k = 40;             // 0: off
  float top_p = 0.95f;        // 1: off
  float min_p = 0.05f;        // 0: off
  float typical_p = 1.0f;     // 1: off
  float top_n_sigma = -1.0f;  // -1 or 0: off
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;  // above 0.5: off
  // Penalties look at the last n tokens of prompt and answer.
  int repeat_last_n = 64;
  float repeat_penalty = 1.0f;  // 1: off
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float dry_multiplier = 0.0f;  // 0: off
  float dry_base = 1.75f;
  int dry_allowed_length = 2;
  int dry_penalty_last_n = 64;
  std::vector<std::string> dry_sequence_breakers{"\n", ":", "\"", "*"};
  float dynatemp_range = 0.0f;  // temperature +- range; 0: off
  float dynatemp_exponent = 1.0f;
  int mirostat = 0;  // 1 or 2: instead of everything but biases, temperature and grammar
  float mirostat_lr = 0.1f;
  float mirostat_entropy = 5.0f;
  float adaptive_target = -1.0f;  // negative: off; needs kAdaptiveP in the order
  float adaptive_decay = 0.9f;
  std::vector<LogitBias> logit_bias = {};
  bool ignore_eos = false;   // never an end-of-generation token
  std::string grammar = {};  // GBNF with the rule "root"; empty: none
  std::vector<SamplerStep> order = default_sampler_order();
};

/// Values out of range are errors, never clamped.
Status check_sampler_options(const SamplerOptions& options);
/// Whether the best token always wins: temperature 0, and nothing that raises it again.
bool is_greedy(const SamplerOptions& options) noexcept;

/// One generation: it remembers what it has seen. Thread-compatible.
class Sampler {
 public:
  /// The model must outlive the sampler. Refuses options out of range, tokens that the model does
  /// not have, and a grammar that the engine can not read.
  static Result<Sampler> create(const Model& model, const SamplerOptions& options);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  /// Tokens that stand before the answer: penalties count them, as in llama.cpp's own programs; the
  /// grammar does not.
  void accept_prompt(std::span<const TokenId> tokens);
  /// Samples from logits [n_vocab] and remembers the choice. Fails if the grammar and the biases
  /// leave no token.
  Result<TokenId> sample(std::span<const float> logits);

 private:
  struct Impl;
  explicit Sampler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace volvelle
