// Tasks that a memory must serve and that one planted fact does not show: finding one pair among
// thousands of its kind, following references, counting words, and several questions in one
// conversation (in the manner of RULER, arXiv 2404.06654, and SCBench, arXiv 2412.10319; the texts
// are our own).
//
// What a model can not do it can not do with any memory either, so tasks are run under several
// memories on the same documents, and the differences count.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

enum class KvTask {
  kKeyValue,       // key-value pairs; the value of one key
  kMultiHop,       // assignments in filler text; all variables that a value has gone to
  kCommonWords,    // a list of words; the ten that occur most
  kFrequentWords,  // invented words of a steep distribution; the three most frequent
  kMultiTurn,      // key-value pairs; several questions, each behind the answers before it
};
/// "key_value", "multi_hop", "common_words", "frequent_words", "multi_turn".
std::string_view to_string(KvTask task) noexcept;
const std::vector<KvTask>& all_kv_tasks();

struct KvQuestion {
  std::string text;
  std::vector<std::string> answers;  // each must occur in the model's answer
  std::int64_t n_predict = 32;
};
struct KvDocument {
  std::string text;
  std::vector<KvQuestion> questions;
};

struct KvTaskOptions {
  std::int64_t tokens = 4096;  // of the document, at most, and not much less
  std::int64_t chunk = 256;
  std::int64_t trials = 4;     // documents
  std::int64_t questions = 4;  // about a document, where a task has more than one
  std::uint64_t seed = 1;
};

/// The document of one trial. Depends on its arguments only.
Result<KvDocument> make_kv_document(KvTask task, const Tokenizer& tokenizer,
                                    const KvTaskOptions& options, std::int64_t trial);

/// Share of the expected answers that occur in `text` as whole words.
double kv_score(const KvQuestion& question, std::string_view text);

struct KvTaskRow {
  KvTask task = KvTask::kKeyValue;
  std::int64_t n = 0;                // questions
  double score = 0.0;                // mean of kv_score()
  std::vector<std::string> answers;  // what the model said, in order
};

/// Asks all questions of a task under one memory, greedily. The multi-turn task needs a model with
/// a chat template.
Result<KvTaskRow> run_kv_task(Session& session, const MemorySpec& spec, KvTask task,
                              const KvTaskOptions& options, const ProgressSink& progress);

}  // namespace volvelle
