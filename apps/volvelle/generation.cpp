// Generation with progress while the prompt is read and streaming afterwards.
#include "generation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/result_macros.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

using Clock = std::chrono::steady_clock;
const Clock::time_point program_start = Clock::now();

// Prompts longer than this are read in pieces of this size, so that progress can be shown.
constexpr std::size_t kPromptPiece = 512;

}  // namespace

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double milliseconds_since_program_start() { return milliseconds_since(program_start); }

Result<Generated> generate_text(Session& session, ContextMemory& memory,
                                const GenerateRequest& request, Sampler& sampler,
                                Console& console) {
  const auto& [prompt, sampling, model_limit] = request;
  const std::int64_t limit = std::min(model_limit, memory.position_limit());
  if (memory.length() + std::ssize(prompt) > limit && limit < model_limit) {
    return Error{ErrorCode::kContextExceeded,
                 fmt::format("the prompt needs {} tokens, but the calibration of the index knows "
                             "positions below {}",
                             memory.length() + std::ssize(prompt), limit)};
  }
  // The last sampled token is never stepped, so one more than the free positions can be generated.
  const std::int64_t room = limit - memory.length() - static_cast<std::int64_t>(prompt.size()) + 1;
  const bool room_decides = sampling.n_predict < 0 || sampling.n_predict > room;
  const std::int64_t n_predict = room_decides ? room : sampling.n_predict;

  const auto start = Clock::now();
  const std::size_t early = prompt.empty() ? 0 : (prompt.size() - 1) / kPromptPiece * kPromptPiece;
  if (early > 0) {
    VOLVELLE_RETURN_IF_ERROR(
        read_tokens(session, memory, prompt.first(early), kPromptPiece, console));
  }
  const double early_ms = milliseconds_since(start);
  Generated result;
  const GenerationRequest generation_request{prompt.subspan(early), n_predict,
                                             [&](std::string_view text) { console.stream(text); },
                                             sampling.stops};
  VOLVELLE_ASSIGN_OR_RETURN(result.generation,
                            generate(session, memory, generation_request, sampler));
  const double total_ms = milliseconds_since(start);
  const Generation& generation = result.generation;
  const bool sampled = generation.first_token_seconds > 0;  // with -n 0 all time goes to the prompt
  result.prompt_ms = sampled ? early_ms + generation.first_token_seconds * 1e3 : total_ms;
  result.predicted_ms = total_ms - result.prompt_ms;
  if (sampled) result.first_token_ms = milliseconds_since_program_start() - result.predicted_ms;
  if (room_decides && generation.stop_reason == "limit") result.generation.stop_reason = "context";
  return result;
}

Status require_whole(const Generation& generation) {
  if (generation.stop_reason != "interrupted") return {};
  return Error{ErrorCode::kCancelled, "generating: interrupted"};
}

}  // namespace volvelle::cli
