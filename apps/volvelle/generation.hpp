// What `ask` and `run` share: reading a prompt with progress, generating, timing.
#pragma once

#include <chrono>
#include <optional>
#include <span>

#include "sampler_flags.hpp"
#include "volvelle/runtime/generate.hpp"

namespace volvelle::cli {

/// Milliseconds since `start`.
double milliseconds_since(std::chrono::steady_clock::time_point start);
/// Milliseconds since the program's static initialisation, which is what first_token_ms counts
/// from; the dynamic loader's work before that is not seen.
double milliseconds_since_program_start();

struct Generated {
  Generation generation;
  double prompt_ms = 0;                  // reading the prompt, up to the first sampled token
  std::optional<double> first_token_ms;  // from the start of the program; nothing with -n 0
  double predicted_ms = 0;               // everything after the first token
};

struct GenerateRequest {
  std::span<const TokenId> prompt;
  const SamplerFlags& sampling;  // prepared
  std::int64_t limit = 0;        // of tokens in all
};

/// Steps the prompt into `memory` and generates at most `sampling.n_predict` tokens, never beyond
/// the limit; text is streamed to the console. An interrupt after the first token is no error here,
/// see Generation::stop_reason.
Result<Generated> generate_text(Session& session, ContextMemory& memory,
                                const GenerateRequest& request, Sampler& sampler, Console& console);

/// For commands of one answer: half an answer is none.
Status require_whole(const Generation& generation);

}  // namespace volvelle::cli
