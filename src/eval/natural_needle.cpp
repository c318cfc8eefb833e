// One haystack is folded chunk by chunk; each of its needles is asked for from a clone of the
// memory, so no question or answer enters what the next is asked from. Cost: one prefill for each
// trial and distance, or for each trial if a haystack holds several needles.
#include "volvelle/eval/natural_needle.hpp"

#include <string>

#include "base/result_macros.hpp"
#include "eval/book_haystack.hpp"
#include "eval/timed_fold.hpp"
#include "volvelle/runtime/generate.hpp"

namespace volvelle {
namespace {

Error invalid(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "needle: " + what};
}

Status check_options(const NaturalNeedleOptions& options, const ModelInfo& model) {
  if (options.chunk < 1 || options.tokens < 1 || options.tokens % options.chunk != 0) {
    return invalid("the number of tokens must be a multiple of the chunk, not " +
                   std::to_string(options.tokens) + " tokens in chunks of " +
                   std::to_string(options.chunk));
  }
  if (options.trials < 1 || options.needles < 1 || options.n_predict < 1) {
    return invalid("trials, needles and predicted tokens must be at least 1, not " +
                   std::to_string(options.trials) + ", " + std::to_string(options.needles) +
                   " and " + std::to_string(options.n_predict));
  }
  const std::int64_t n_chunks = options.tokens / options.chunk;
  if ((options.needles > 1) != options.distances.empty()) {
    return invalid(options.distances.empty()
                       ? std::string("no distances given")
                       : "several needles are placed in evenly spaced chunks, so no distances can "
                         "be given");
  }
  if (options.needles > n_chunks) {
    return invalid(std::to_string(options.needles) + " needles do not fit " +
                   std::to_string(n_chunks) + " chunks");
  }
  for (const std::int64_t d : options.distances) {
    if (d >= 1 && d <= n_chunks) continue;
    return invalid("a distance must be 1 to " + std::to_string(n_chunks) +
                   " (the number of chunks), not " + std::to_string(d));
  }
  if (options.tokens + options.n_predict >= model.context_length) {
    return Error{ErrorCode::kContextExceeded, "needle: " + std::to_string(options.tokens) +
                                                  " tokens, the question and the answer exceed the "
                                                  "model's context of " +
                                                  std::to_string(model.context_length)};
  }
  return {};
}

class NaturalRun {
 public:
  NaturalRun(Session& session, const MemorySpec& spec, const NaturalNeedleOptions& options,
             const BookLibrary& library, ProgressMeter& meter)
      : session_(session), spec_(spec), options_(options), library_(library), meter_(meter) {
    for (const std::int64_t d : needle_distances(options)) {
      result_.rows.push_back({.distance = d});
    }
  }

  /// Folds a haystack with a needle at each of these distances, and asks for them.
  Status run(std::int64_t trial, const std::vector<std::int64_t>& distances) {
    VOLVELLE_ASSIGN_OR_RETURN(const BookHaystack haystack,
                              library_.make(options_, trial, distances));
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session_.begin(spec_));
    const std::vector<TokenId>& text = options_.isolated ? library_.opening() : haystack.tokens;
    VOLVELLE_RETURN_IF_ERROR(
        fold_timed(session_, memory, text, options_.chunk, meter_, result_.chunks));
    if (options_.after_fold) {
      VOLVELLE_ASSIGN_OR_RETURN(memory, options_.after_fold(std::move(memory)));
    }
    for (const BookHaystack::Needle& needle : haystack.needles) {
      VOLVELLE_RETURN_IF_ERROR(ask(memory, needle));
    }
    return {};
  }

  NeedleResult finish() {
    if (options_.isolated) result_.chunks.clear();
    return std::move(result_);
  }

 private:
  Status ask(const ContextMemory& memory, const BookHaystack::Needle& needle) {
    ContextMemory branch = memory.clone();
    VOLVELLE_ASSIGN_OR_RETURN(Sampler sampler, Sampler::create(session_.model(), {}));  // greedy
    GenerationRequest request;
    request.prompt = needle.question;
    request.n_predict = options_.n_predict;
    VOLVELLE_ASSIGN_OR_RETURN(const Generation answer,
                              generate(session_, branch, request, sampler));
    if (answer.stop_reason == "interrupted")
      return Error{ErrorCode::kCancelled, "needle: interrupted"};
    const auto number = first_five_digits(answer.text);
    for (NeedleRow& row : result_.rows) {
      if (row.distance != needle.distance) continue;
      row.trials += 1;
      row.correct += number == needle.fact.value ? 1 : 0;
      row.none += number ? 0 : 1;
      break;
    }
    return {};
  }

  Session& session_;
  const MemorySpec& spec_;
  const NaturalNeedleOptions& options_;
  const BookLibrary& library_;
  ProgressMeter& meter_;
  NeedleResult result_;
};

}  // namespace

std::vector<std::int64_t> needle_distances(const NaturalNeedleOptions& options) {
  if (options.needles == 1) return options.distances;
  const std::int64_t n_chunks = options.tokens / options.chunk;
  std::vector<std::int64_t> distances;
  for (std::int64_t i = options.needles; i-- > 0;) {
    distances.push_back(n_chunks - (2 * i + 1) * n_chunks / (2 * options.needles));
  }
  return distances;
}

Result<NeedleResult> run_natural_needle(Session& session, const MemorySpec& spec,
                                        std::string_view book, const NaturalNeedleOptions& options,
                                        const ProgressSink& progress) {
  VOLVELLE_RETURN_IF_ERROR(check_options(options, session.model().info()));
  VOLVELLE_ASSIGN_OR_RETURN(const BookLibrary library,
                            BookLibrary::create(session.model(), book, options.chat));
  const std::vector<std::int64_t> distances = needle_distances(options);
  std::vector<std::vector<std::int64_t>> haystacks;  // distances of each haystack of a trial
  if (options.needles > 1) haystacks.push_back(distances);
  if (options.needles == 1) {
    for (const std::int64_t d : distances) haystacks.push_back({d});
  }
  const std::int64_t each = options.isolated ? std::ssize(library.opening()) : options.tokens;
  ProgressMeter meter(progress, "needle", "tokens", options.trials * std::ssize(haystacks) * each);
  NaturalRun run(session, spec, options, library, meter);
  for (std::int64_t trial = 0; trial < options.trials; ++trial) {
    for (const auto& of_haystack : haystacks) {
      VOLVELLE_RETURN_IF_ERROR(run.run(trial, of_haystack));
    }
  }
  return run.finish();
}

}  // namespace volvelle
