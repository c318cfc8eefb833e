// Generating text from a memory.
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

/// Steps `prompt` into `memory`, then samples up to `n_predict` tokens. `on_text` gets text as it
/// becomes valid UTF-8.
Result<Generation> generate(Session& session, ContextMemory& memory,
                            std::span<const TokenId> prompt, std::int64_t n_predict,
                            const Model& model, Sampler& sampler,
                            const std::function<void(std::string_view)>& on_text);

}  // namespace volvelle
