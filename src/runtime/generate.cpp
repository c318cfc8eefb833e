// Prompt, then one token at a time until the model ends, a stop string, the limit or the end of the
// context. Invariant: when this returns, the memory holds the prompt and every sampled token but
// the last. Cost: one step of the prompt and one decode step per predicted token.
#include "volvelle/runtime/generate.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/result_macros.hpp"
#include "runtime/stop_scanner.hpp"

namespace volvelle {
namespace {

/// From bytes of tokens to text that may be shown.
class TextStream {
 public:
  TextStream(const GenerationRequest& request, Generation& out)
      : on_text_(request.on_text), out_(out), scanner_(request.stops) {}

  /// False if the text now contains a stop string.
  bool push(std::string_view bytes) {
    emit(scanner_.push(assembler_.push(bytes)));
    return !scanner_.found();
  }

  void finish() {
    emit(scanner_.push(assembler_.finish()));
    emit(scanner_.finish());
    if (scanner_.found()) out_.stop_string = *scanner_.found();
  }

 private:
  void emit(const std::string& text) {
    if (text.empty()) return;
    out_.text += text;
    if (on_text_) on_text_(text);
  }

  const std::function<void(std::string_view)>& on_text_;
  Generation& out_;
  Utf8Assembler assembler_;
  StopScanner scanner_;
};

/// Samples until something ends the generation, and says what. `take` gets every token and says
/// what it ends, if anything. The last sampled token is in no memory then.
Result<std::string> sample_tokens(Session& session, ContextMemory& memory, Sampler& sampler,
                                  std::int64_t n_predict,
                                  const std::function<const char*(TokenId)>& take) {
  for (std::int64_t n = 0; n < n_predict; ++n) {
    VOLVELLE_ASSIGN_OR_RETURN(const TokenId token, sampler.sample(session.logits()));
    if (const char* const ended = take(token)) return std::string(ended);
    if (n + 1 == n_predict) break;
    const std::int64_t room =
        std::min(session.model().info().context_length, memory.position_limit());
    if (memory.length() >= room) return std::string("context");
    const Status stepped = session.step(memory, std::span(&token, 1), Logits::kLast);
    if (stepped.ok()) continue;
    if (stepped.error().code == ErrorCode::kCancelled) return std::string("interrupted");
    return stepped.error();
  }
  return std::string("limit");
}

}  // namespace

Result<Generation> generate(Session& session, ContextMemory& memory,
                            const GenerationRequest& request, Sampler& sampler) {
  if (request.prompt.empty())
    return Error{ErrorCode::kInvalidArgument, "generate: the prompt has no token"};
  VOLVELLE_RETURN_IF_ERROR(StopScanner::check(request.stops));
  const auto start = Clock::now();
  sampler.accept_prompt(memory.tokens());
  sampler.accept_prompt(request.prompt);
  VOLVELLE_RETURN_IF_ERROR(session.step(memory, request.prompt, Logits::kLast));
  Generation result;
  TextStream text(request, result);
  const Tokenizer& tokenizer = session.model().tokenizer();
  const auto take = [&](TokenId token) -> const char* {
    if (result.first_token_seconds == 0) result.first_token_seconds = seconds_since(start);
    if (tokenizer.is_end_of_generation(token)) return "end";
    result.tokens.push_back(token);
    return text.push(tokenizer.piece(token)) ? nullptr : "stop";
  };
  VOLVELLE_ASSIGN_OR_RETURN(result.stop_reason,
                            sample_tokens(session, memory, sampler, request.n_predict, take));
  text.finish();
  if (!result.stop_string.empty()) result.stop_reason = "stop";
  result.n_predicted = static_cast<std::int64_t>(result.tokens.size());
  result.seconds = seconds_since(start) - result.first_token_seconds;
  return result;
}

}  // namespace volvelle
