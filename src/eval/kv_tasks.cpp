// Asking the questions: each from a clone of the folded memory, or one behind the other. As `ask`
// does, the whole conversation is tokenized and what the memory holds already is kept.
#include "volvelle/eval/kv_tasks.hpp"

#include <algorithm>

#include "base/result_macros.hpp"
#include "eval/progress_meter.hpp"
#include "eval/timed_fold.hpp"
#include "volvelle/runtime/chat_format.hpp"
#include "volvelle/runtime/generate.hpp"

namespace volvelle {
namespace {

Status check_options(KvTask task, const KvTaskOptions& options, const Model& model) {
  const auto invalid = [](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, "kv: " + what};
  };
  if (options.tokens < 256 || options.chunk < 1 || options.trials < 1 || options.questions < 1)
    return invalid("expected at least 256 tokens, and a chunk, trials and questions of at least 1");
  if (task == KvTask::kMultiTurn && default_chat_format(model) == "raw")
    return invalid("the task multi_turn needs a model with a known chat template");
  // Question, answer and template; several of them in a conversation.
  const std::int64_t rest = 160 * (task == KvTask::kMultiTurn ? options.questions : 1);
  if (options.tokens + rest <= model.info().context_length) return {};
  return Error{ErrorCode::kContextExceeded,
               "kv: " + std::to_string(options.tokens) + " tokens and " + std::to_string(rest) +
                   " for questions and answers exceed the model's context of " +
                   std::to_string(model.info().context_length) + "; use fewer tokens"};
}

class KvRun {
 public:
  KvRun(Session& session, const MemorySpec& spec, KvTask task, const KvTaskOptions& options)
      : session_(session), spec_(spec), task_(task), options_(options) {
    row_.task = task;
  }

  Status prepare() {
    const Model& model = session_.model();
    VOLVELLE_ASSIGN_OR_RETURN(format_, make_chat_format(model, default_chat_format(model)));
    return {};
  }

  Status run(std::int64_t trial, ProgressMeter& meter) {
    VOLVELLE_ASSIGN_OR_RETURN(
        const KvDocument document,
        make_kv_document(task_, session_.model().tokenizer(), options_, trial));
    VOLVELLE_ASSIGN_OR_RETURN(
        const DocumentTokens tokens,
        tokenize_document(session_.model().tokenizer(), format_, document.text));
    VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session_.begin(spec_));
    std::vector<ChunkTime> times;
    VOLVELLE_RETURN_IF_ERROR(
        fold_timed(session_, memory, tokens.tokens, options_.chunk, meter, times));
    std::vector<ChatMessage> turns;
    for (const KvQuestion& question : document.questions) {
      const bool first = turns.empty();
      turns.push_back(
          {"user",
           first ? document.text + std::string(kQuestionSeparator) + question.text : question.text,
           -1});
      ContextMemory branch = memory.clone();
      VOLVELLE_ASSIGN_OR_RETURN(std::string answer, ask(branch, document, turns, question));
      row_.score += kv_score(question, answer);
      ++row_.n;
      row_.answers.push_back(answer);
      if (task_ == KvTask::kMultiTurn) {
        turns.push_back({"assistant", std::move(answer), -1});
        memory = std::move(branch);
      } else {
        turns.clear();
      }
    }
    return {};
  }

  KvTaskRow finish() {
    row_.score /= static_cast<double>(std::max<std::int64_t>(row_.n, 1));
    return std::move(row_);
  }

 private:
  /// A model without a chat template continues the text.
  Result<DocumentTokens> tokens_of(const KvDocument& document, std::span<const ChatMessage> turns,
                                   const KvQuestion& question) const {
    const Tokenizer& tokenizer = session_.model().tokenizer();
    if (format_.name != "raw") return tokenize_messages(tokenizer, format_, turns, true);
    return tokenize_conversation(tokenizer, format_, document.text, question.text + "\nAnswer:");
  }

  Result<std::string> ask(ContextMemory& memory, const KvDocument& document,
                          std::span<const ChatMessage> turns, const KvQuestion& question) {
    VOLVELLE_ASSIGN_OR_RETURN(const DocumentTokens all, tokens_of(document, turns, question));
    const auto differs = std::mismatch(all.tokens.begin(), all.tokens.end(),
                                       memory.tokens().begin(), memory.tokens().end());
    auto kept = differs.first - all.tokens.begin();
    if (kept == std::ssize(all.tokens)) --kept;  // something must be run
    VOLVELLE_RETURN_IF_ERROR(memory.truncate(kept));
    VOLVELLE_ASSIGN_OR_RETURN(Sampler sampler, Sampler::create(session_.model(), {}));  // greedy
    GenerationRequest request;
    request.prompt = std::span(all.tokens).subspan(static_cast<std::size_t>(kept));
    request.n_predict = question.n_predict;
    VOLVELLE_ASSIGN_OR_RETURN(Generation answer, generate(session_, memory, request, sampler));
    if (answer.stop_reason == "interrupted") return Error{ErrorCode::kCancelled, "kv: interrupted"};
    return std::string(trim_content(answer.text));
  }

  Session& session_;
  const MemorySpec& spec_;
  KvTask task_;
  const KvTaskOptions& options_;
  ChatFormat format_;
  KvTaskRow row_;
};

}  // namespace

Result<KvTaskRow> run_kv_task(Session& session, const MemorySpec& spec, KvTask task,
                              const KvTaskOptions& options, const ProgressSink& progress) {
  VOLVELLE_RETURN_IF_ERROR(check_options(task, options, session.model()));
  ProgressMeter meter(progress, to_string(task), "tokens", options.trials * options.tokens);
  KvRun run(session, spec, task, options);
  VOLVELLE_RETURN_IF_ERROR(run.prepare());
  for (std::int64_t trial = 0; trial < options.trials; ++trial)
    VOLVELLE_RETURN_IF_ERROR(run.run(trial, meter));
  return run.finish();
}

}  // namespace volvelle
