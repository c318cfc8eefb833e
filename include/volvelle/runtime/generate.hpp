// Generating text from a memory: prompt, then one token at a time. Text is handed out as whole
// UTF-8 characters, and never a part of a stop string.
//
//   after the call the memory holds what it held, the prompt, and every sampled token but the last
//
// The last sampled token is the one that ended the generation: an end token, the one that completed
// a stop string, or the n_predict-th.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "volvelle/runtime/sampler.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

struct Generation {
  std::string text;              // valid UTF-8, up to the stop string
  std::vector<TokenId> tokens;   // all sampled ones but an end token; with those of the stop string
  std::int64_t n_predicted = 0;  // of tokens
  /// "end" (the model ended), "stop" (the text contains a stop string), "limit" (n_predict),
  /// "context" (no room left), "interrupted" (after at least one token)
  std::string stop_reason;
  std::string stop_string;         // with "stop": the one that was found
  double first_token_seconds = 0;  // from the call to the first sampled token
  double seconds = 0;              // of all decoding
};

struct GenerationRequest {
  std::span<const TokenId> prompt = {};                // at least one token
  std::int64_t n_predict = 0;                          // at most this many tokens
  std::function<void(std::string_view)> on_text = {};  // gets text as it becomes certain
  /// Generation ends when its text (not the prompt) contains one of them; the text then ends before
  /// it. Of several the one that is complete first counts, of those that end together the longest.
  std::vector<std::string> stops = {};
};

/// Shows the sampler the memory's tokens and the prompt, steps the prompt into `memory`, samples.
/// Interrupted while it reads the prompt it fails with kCancelled; later it returns what it has.
Result<Generation> generate(Session& session, ContextMemory& memory,
                            const GenerationRequest& request, Sampler& sampler);

}  // namespace volvelle
