// Needle in a haystack on the wired retriever, whose recall is 100 % by construction: a miss is a
// fault of the memory.
//
// One trial folds one haystack of T tokens chunk by chunk; it holds one needle for each distance,
// each with its own key, and random facts. Then every needle is asked for from its own clone of the
// memory, by one token at position T: the question never enters the memory that the next one is
// asked from. So a trial costs one prefill, whatever the number of distances. Trials differ in
// every random choice. Right means: the most likely token is the needle's value; a missing fact is
// answered "none".
#include "volvelle/eval/needle.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/result_macros.hpp"
#include "eval/haystack.hpp"
#include "eval/logit_math.hpp"
#include "eval/progress_meter.hpp"
#include "eval/timed_fold.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle {
namespace {

Error invalid(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "needle: " + what};
}

Status check_options(const NeedleOptions& options, const ModelInfo& model) {
  if (options.chunk < 1 || options.tokens < 1 || options.tokens % options.chunk != 0) {
    return invalid("the number of tokens must be a multiple of the chunk, not " +
                   std::to_string(options.tokens) + " tokens in chunks of " +
                   std::to_string(options.chunk));
  }
  if (options.tokens + 1 > model.context_length) {
    return Error{ErrorCode::kContextExceeded, "needle: " + std::to_string(options.tokens) +
                                                  " tokens and the question exceed "
                                                  "the model's context of " +
                                                  std::to_string(model.context_length)};
  }
  if (options.trials < 1 || options.absent < 0) {
    return invalid(
        "the number of trials must be at least 1 and that of absent keys at least 0, not " +
        std::to_string(options.trials) + " and " + std::to_string(options.absent));
  }
  if (options.distances.empty()) return invalid("no distances given");
  const std::int64_t n_chunks = options.tokens / options.chunk;
  for (const std::int64_t d : options.distances) {
    if (d >= 1 && d <= n_chunks) continue;
    return invalid("a distance must be 1 to " + std::to_string(n_chunks) +
                   " (the number of chunks), not " + std::to_string(d));
  }
  return {};
}

/// The model's answer to `key`; `memory` stays as it is.
Result<TokenId> ask(Session& session, const ContextMemory& memory, TokenId key) {
  ContextMemory branch = memory.clone();
  VOLVELLE_RETURN_IF_ERROR(session.step(branch, std::span(&key, 1), Logits::kLast));
  const std::span<const float> logits = session.logits(0);
  if (!std::isfinite(log_sum_exp(logits))) {
    return Error{ErrorCode::kNumeric, "needle: the logits of the question at position " +
                                          std::to_string(memory.length()) + " are not finite"};
  }
  return static_cast<TokenId>(argmax(logits));
}

}  // namespace

bool is_wired_retriever(const Model& model) { return find_retriever_words(model).ok(); }

Result<NeedleResult> run_needle(const Model& model, Session& session, const MemorySpec& spec,
                                const NeedleOptions& options, const ProgressSink& progress) {
  VOLVELLE_ASSIGN_OR_RETURN(const RetrieverWords words, find_retriever_words(model));
  VOLVELLE_RETURN_IF_ERROR(check_options(options, model.info()));
  NeedleResult result;
  std::vector<NeedleRow>& rows = result.rows;
  for (const std::int64_t d : options.distances) rows.push_back({.distance = d});
  NeedleRow absent;  // distance 0

  ProgressMeter meter(progress, "needle", "tokens", options.trials * options.tokens);
  for (std::int64_t trial = 0; trial < options.trials; ++trial) {
    VOLVELLE_ASSIGN_OR_RETURN(const Haystack haystack, make_haystack(words, options, trial));
    // Alone, a question still stands behind the beginning of a text.
    const auto text =
        std::span(haystack.tokens).first(options.isolated ? 1 : haystack.tokens.size());
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(spec));
    VOLVELLE_RETURN_IF_ERROR(
        fold_timed(session, memory, text, options.chunk, meter, result.chunks));
    if (options.after_fold) {
      VOLVELLE_ASSIGN_OR_RETURN(memory, options.after_fold(std::move(memory)));
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Fact& needle = haystack.needles[i];
      VOLVELLE_ASSIGN_OR_RETURN(const TokenId answer, ask(session, memory, needle.key));
      rows[i].trials += 1;
      rows[i].correct += answer == needle.value ? 1 : 0;
      rows[i].none += answer == words.none ? 1 : 0;
    }
    for (const TokenId key : haystack.absent_keys) {
      VOLVELLE_ASSIGN_OR_RETURN(const TokenId answer, ask(session, memory, key));
      absent.trials += 1;
      absent.none += answer == words.none ? 1 : 0;
    }
  }
  absent.correct = absent.none;
  if (options.absent > 0) rows.push_back(absent);
  if (options.isolated) result.chunks.clear();
  return result;
}

}  // namespace volvelle
