// Generating text from a memory: prompt, then one token at a time. The last sampled token is not
// stepped into the memory. Text is handed out as whole UTF-8 characters.
#pragma once

#include <functional>
#include <string>

#include "volvelle/runtime/sampler.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

struct Generation {
  std::string text;  // valid UTF-8
  std::int64_t n_predicted = 0;
  std::string
      stop_reason;  // "end" (the model ended), "limit" (n_predict), "context" (no room left)
  double first_token_seconds = 0;  // from the call to the first sampled token
  double seconds = 0;              // of all decoding
};

struct GenerationRequest {
  std::span<const TokenId> prompt;                // at least one token
  std::int64_t n_predict = 0;                     // at most this many tokens
  std::function<void(std::string_view)> on_text;  // gets text as it becomes valid UTF-8
};

/// Steps the prompt into `memory`, then samples.
Result<Generation> generate(Session& session, ContextMemory& memory,
                            const GenerationRequest& request, Sampler& sampler);

}  // namespace volvelle
