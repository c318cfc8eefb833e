// `volvelle bench kv`: retrieval, references, counting and several turns under several memories, on
// the same documents. The first memory is what the others are compared with.
#include <fmt/format.h>

#include <algorithm>

#include "base/result_macros.hpp"
#include "bench.hpp"
#include "certificate.hpp"
#include "options.hpp"
#include "volvelle/eval/kv_tasks.hpp"

namespace volvelle::cli {

namespace {

struct KvFlags {
  ModelFlags model;
  MemoryFlags memory;
  BenchOutput output;
  std::vector<std::string> tasks;
  KvTaskOptions options;
};

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const KvTask task : all_kv_tasks()) names.emplace_back(to_string(task));
  return names;
}

void declare(CLI::App& app, KvFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  flags.memory.spec = "full;full+topk(k=128)";
  add_memory_list_flags(app, flags.memory);
  app.add_option("--tasks", flags.tasks, "Which tasks, separated by commas (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(task_names()));
  app.add_option("--tokens", flags.options.tokens, "Length of a document")
      ->check(CLI::Range(std::int64_t{256}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--chunk", flags.options.chunk, "Tokens per step of the fold")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--trials", flags.options.trials, "Documents of each task")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--questions", flags.options.questions,
                 "Questions about a document, for tasks with pairs of keys and values")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 10))
      ->capture_default_str();
  app.add_option("-s,--seed", flags.options.seed, "Seed of the documents")->capture_default_str();
  add_bench_output(app, flags.output);
}

// Share of questions that were answered with the very same words.
double same_answers(const KvTaskRow& row, const KvTaskRow& first) {
  double same = 0;
  for (std::size_t i = 0; i < row.answers.size(); ++i) same += row.answers[i] == first.answers[i];
  return row.answers.empty() ? 1.0 : same / static_cast<double>(row.answers.size());
}

Result<Report> run(const KvFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto specs, effective_specs(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  std::vector<KvTaskRow> first;  // of the first memory, one for each task
  Json rows = Json::array();
  for (const MemorySpec& spec : specs) {
    VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
    VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
    std::size_t at = 0;
    for (const KvTask task : all_kv_tasks()) {
      const std::string name(to_string(task));
      const bool wanted = flags.tasks.empty() || std::find(flags.tasks.begin(), flags.tasks.end(),
                                                           name) != flags.tasks.end();
      if (!wanted) continue;
      VOLVELLE_ASSIGN_OR_RETURN(
          KvTaskRow row, run_kv_task(session, spec, task, flags.options, console.progress_sink()));
      const ReadStatistics reads = session.take_read_statistics();
      if (at == first.size()) first.push_back(row);
      rows.push_back({{"task", name},
                      {"spec", to_string(spec)},
                      {"n", row.n},
                      {"score", row.score},
                      {"score_delta", row.score - first[at].score},
                      {"same_answers", same_answers(row, first[at])},
                      {"bytes_ratio", bytes_ratio(reads)}});
      ++at;
    }
  }
  return make_bench_report({{"model", model.info().path.string()},
                            {"model_fingerprint", model.info().fingerprint},
                            {"engine", engine_version()},
                            {"tokens", flags.options.tokens},
                            {"trials", flags.options.trials},
                            {"seed", flags.options.seed}},
                           std::move(rows), flags.output);
}

}  // namespace

void add_bench_kv(CLI::App& bench, Selected& selected) {
  add_command<KvFlags>(bench, selected, "kv",
                       "Key-value retrieval, references, counting words, several turns", declare,
                       run);
}

}  // namespace volvelle::cli
