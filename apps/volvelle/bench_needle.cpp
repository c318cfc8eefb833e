// `volvelle bench needle`: recall by distance between a fact and the question.
//
//   wired    the wired retriever, whose recall is 100 % by construction: a miss is a fault of the
//            memory (or the fact was dropped by a window)
//   natural  a trained model, a fact in a real book; a miss may be the model's
//
// Several memories run on the same haystacks. With --baselines also StreamingLLM (the size of the
// KV-Fold paper's comparison) and the questions alone. What each chunk took is fitted by the cost
// law a + b P.
#include <fmt/format.h>

#include "base/result_macros.hpp"
#include "bench.hpp"
#include "options.hpp"
#include "text_input.hpp"
#include "volvelle/eval/natural_needle.hpp"
#include "volvelle/eval/needle.hpp"
#include "volvelle/runtime/chat_format.hpp"

namespace volvelle::cli {

namespace {

constexpr const char* kStreamingSpec = "sink(4)+window(1020,block=1)";

struct NeedleFlags {
  ModelFlags model;
  MemoryFlags memory;
  BenchOutput output;
  std::string variant;
  std::string file;
  std::string format;
  bool baselines = false;
  std::int64_t tokens = 8192;
  std::int64_t chunk = 256;
  std::vector<std::int64_t> distances;
  std::int64_t needles = 1;
  std::int64_t trials = 4;
  std::uint64_t seed = 1;
  std::int64_t absent = 0;
};

void declare_protocol(CLI::App& app, NeedleFlags& flags) {
  app.add_option("--tokens", flags.tokens, "Length of the haystack, a multiple of --chunk")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--chunk", flags.chunk, "Tokens per step of the fold")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--distances", flags.distances, "Chunks between fact and question, e.g. 1,8,32")
      ->delimiter(',');
  app.add_option("--trials", flags.trials, "Haystacks")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("-s,--seed", flags.seed, "Seed of the haystacks")->capture_default_str();
}

void declare(CLI::App& app, NeedleFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  app.add_flag("--deterministic", flags.model.deterministic,
               "Equal bits for any -ub and number of threads in our attention");
  add_memory_list_flags(app, flags.memory);
  app.add_flag("--baselines", flags.baselines,
               fmt::format("Also run '{}' and the questions alone", kStreamingSpec));
  app.add_option("--variant", flags.variant,
                 "wired or natural (default: wired for the wired retriever, else natural)")
      ->check(CLI::IsMember({"wired", "natural"}));
  declare_protocol(app, flags);
  app.add_option("--absent", flags.absent,
                 "wired: also ask for so many absent keys (reported as distance 0)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{64}))
      ->capture_default_str();
  app.add_option("-f,--file", flags.file,
                 "natural: the book, or the name of one in the cache folder's texts/");
  app.add_option("--needles", flags.needles,
                 "natural: facts a haystack, in evenly spaced chunks; replaces --distances")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{40}))
      ->capture_default_str();
  app.add_option("--format", flags.format,
                 "natural: chat or raw (default: chat if the model has a known template)")
      ->check(CLI::IsMember({"chat", "raw"}));
  add_bench_output(app, flags.output);
}

// What does not belong to the variant would be ignored, so it is refused.
Status check_flags(const NeedleFlags& flags, bool wired) {
  if (wired) {
    if (!flags.file.empty() || !flags.format.empty() || flags.needles > 1) {
      return usage_error("-f, --format and --needles belong to --variant natural");
    }
    if (flags.distances.empty()) return usage_error("--distances is required");
    return {};
  }
  if (flags.absent > 0) return usage_error("--absent belongs to --variant wired");
  if (flags.file.empty()) {
    return usage_error("--variant natural needs a book: give -f, e.g. -f emma.txt");
  }
  if (flags.distances.empty() == (flags.needles == 1)) {
    return usage_error("give either --distances or --needles K with K > 1");
  }
  return {};
}

// One line of the comparison: a memory, or the questions alone.
struct Contender {
  MemorySpec spec;
  bool isolated = false;
};

Result<std::vector<Contender>> contenders(const NeedleFlags& flags) {
  std::vector<Contender> found;
  VOLVELLE_ASSIGN_OR_RETURN(const auto specs, effective_specs(flags.memory));
  for (const MemorySpec& spec : specs) found.push_back({spec});
  if (!flags.baselines) return found;
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec streaming, parse_memory_spec(kStreamingSpec));
  found.push_back({streaming});
  found.push_back({MemorySpec::full_memory(), true});
  return found;
}

class NeedleBench {
 public:
  NeedleBench(const NeedleFlags& flags, const Model& model, Console& console)
      : flags_(flags), model_(model), console_(console) {}

  Status prepare() {
    wired_ = flags_.variant.empty() ? is_wired_retriever(model_) : flags_.variant == "wired";
    VOLVELLE_RETURN_IF_ERROR(check_flags(flags_, wired_));
    if (wired_) return {};
    VOLVELLE_ASSIGN_OR_RETURN(TextInput book, read_text(flags_.file, console_));
    book_ = std::move(book.text);
    return {};
  }

  Status run(const Contender& contender) {
    VOLVELLE_ASSIGN_OR_RETURN(const auto options,
                              session_options(flags_.model, contender.spec, console_));
    VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model_, options));
    VOLVELLE_ASSIGN_OR_RETURN(const NeedleResult result, wired_ ? run_wired(session, contender)
                                                                : run_natural(session, contender));
    const std::string name = contender.isolated ? "isolated" : to_string(contender.spec);
    for (const NeedleRow& row : result.rows) {
      rows.push_back({{"spec", name},
                      {"distance", row.distance},
                      {"trials", row.trials},
                      {"correct", row.correct},
                      {"none", row.none}});
    }
    add_cost(name, result.chunks);
    return {};
  }

  const char* variant() const noexcept { return wired_ ? "wired" : "natural"; }
  Json rows = Json::array();
  Json cost = Json::array();

 private:
  Result<NeedleResult> run_wired(Session& session, const Contender& contender) {
    NeedleOptions options;
    options.tokens = flags_.tokens;
    options.chunk = flags_.chunk;
    options.distances = flags_.distances;
    options.trials = flags_.trials;
    options.seed = flags_.seed;
    options.absent = flags_.absent;
    options.isolated = contender.isolated;
    return run_needle(model_, session, contender.spec, options, console_.progress_sink());
  }

  Result<NeedleResult> run_natural(Session& session, const Contender& contender) {
    const std::string format = flags_.format.empty() ? default_chat_format(model_) : flags_.format;
    NaturalNeedleOptions options;
    options.tokens = flags_.tokens;
    options.chunk = flags_.chunk;
    options.distances = flags_.distances;
    options.needles = flags_.needles;
    options.trials = flags_.trials;
    options.seed = flags_.seed;
    options.chat = format == "chat";
    options.isolated = contender.isolated;
    return run_natural_needle(session, contender.spec, book_, options, console_.progress_sink());
  }

  void add_cost(const std::string& name, const std::vector<ChunkTime>& chunks) {
    const LineFit fit = fit_chunk_times(chunks);
    if (fit.n < 3) return;
    cost.push_back({{"spec", name},
                    {"chunk_depths", fit.n},
                    {"seconds_per_chunk", fit.intercept},
                    {"seconds_per_token_before", fit.slope},
                    {"r2", fit.r2}});
    console_.note(
        fmt::format("{}: a chunk takes {:.4g} s + {:.4g} s for each token before it, "
                    "R^2 {:.4f} over {} depths",
                    name, fit.intercept, fit.slope, fit.r2, fit.n));
  }

  const NeedleFlags& flags_;
  const Model& model_;
  Console& console_;
  bool wired_ = true;
  std::string book_;
};

Result<Report> run(const NeedleFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto all, contenders(flags));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  NeedleBench bench(flags, model, console);
  VOLVELLE_RETURN_IF_ERROR(bench.prepare());
  for (const Contender& contender : all) VOLVELLE_RETURN_IF_ERROR(bench.run(contender));
  Json specs = Json::array();
  for (const Contender& contender : all) {
    if (!contender.isolated) specs.push_back(to_string(contender.spec));
  }
  return make_bench_report({{"model", model.info().path.string()},
                            {"model_fingerprint", model.info().fingerprint},
                            {"engine", engine_version()},
                            {"variant", bench.variant()},
                            {"specs", std::move(specs)},
                            {"tokens", flags.tokens},
                            {"chunk", flags.chunk},
                            {"seed", flags.seed},
                            {"cost", std::move(bench.cost)}},
                           std::move(bench.rows), flags.output);
}

}  // namespace

void add_bench_needle(CLI::App& bench, Selected& selected) {
  add_command<NeedleFlags>(bench, selected, "needle",
                           "Recall by distance: the wired retriever, or a fact in a book", declare,
                           run);
}

}  // namespace volvelle::cli
