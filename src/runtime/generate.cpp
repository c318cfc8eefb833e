// Prompt, then one token at a time until the model ends, the limit or the context is reached.
// Invariant: when this returns, the memory holds the prompt and every predicted token but the last.
// Cost: one step of the prompt and one decode step per predicted token.
#include "volvelle/runtime/generate.hpp"

#include <chrono>

#include "base/result_macros.hpp"

namespace volvelle {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<Generation> generate(Session& session, ContextMemory& memory,
                            const GenerationRequest& request, Sampler& sampler) {
  const auto& [prompt, n_predict, on_text] = request;
  const Model& model = session.model();
  if (prompt.empty())
    return Error{ErrorCode::kInvalidArgument, "generate: the prompt has no token"};
  Generation result;
  Utf8Assembler assembler;
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    if (on_text) on_text(text);
  };

  const auto start = std::chrono::steady_clock::now();
  VOLVELLE_RETURN_IF_ERROR(session.step(memory, prompt, Logits::kLast));
  result.stop_reason = "limit";
  while (result.n_predicted < n_predict) {
    const TokenId token = sampler.sample(session.logits());
    if (result.n_predicted == 0) result.first_token_seconds = seconds_since(start);
    if (model.tokenizer().is_end_of_generation(token)) {
      result.stop_reason = "end";
      break;
    }
    ++result.n_predicted;
    emit(assembler.push(model.tokenizer().piece(token)));
    if (result.n_predicted == n_predict) break;
    if (memory.length() >= model.info().context_length) {
      result.stop_reason = "context";
      break;
    }
    VOLVELLE_RETURN_IF_ERROR(session.step(memory, std::span(&token, 1), Logits::kLast));
  }
  emit(assembler.finish());
  result.seconds = seconds_since(start) - result.first_token_seconds;
  return result;
}

}  // namespace volvelle
