// `volvelle bench speed`: memories, and llama.cpp itself, at several depths in one process.
//
// Without -f the tokens are seeded random ones: for dense attention time does not depend on them.
// The table has llama-bench's test names: pp512 @ d8000 reads 512 tokens behind 8,000, tg32 @ d8000
// decodes 32 there. The JSON object has one row per depth and memory.
#include <fmt/format.h>

#include <random>
#include <thread>

#include "base/result_macros.hpp"
#include "bench.hpp"
#include "options.hpp"
#include "text_input.hpp"
#include "volvelle/eval/speed.hpp"

namespace volvelle::cli {

namespace {

struct SpeedFlags {
  ModelFlags model;
  MemoryFlags memory;
  BenchOutput output;
  std::string file;
  std::string against;
  std::vector<std::int64_t> depths{512};
  std::int64_t n_decode = 32;
  std::int64_t n_prefill = 512;
  int repetitions = 7;
};

void declare(CLI::App& app, SpeedFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  app.add_flag("--deterministic", flags.model.deterministic,
               "Equal bits for any -ub and number of threads in our attention");
  add_memory_list_flags(app, flags.memory);
  app.add_option("-d,--n-depth", flags.depths, "Tokens already in memory, e.g. 512,8000")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("-n,--n-gen", flags.n_decode, "Tokens to decode at each depth")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("-p,--n-prompt", flags.n_prefill, "Tokens to read at each depth (0: none)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("-r,--repetitions", flags.repetitions, "Alternations")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--against", flags.against, "Also measure llama.cpp's own paths: llama")
      ->check(CLI::IsMember({"llama"}));
  app.add_option("-f,--file", flags.file, "Text to run (default: seeded random tokens)");
  add_bench_output(app, flags.output);
}

std::vector<TokenId> random_tokens(std::int64_t n, std::int64_t n_vocab) {
  std::mt19937_64 random(1);
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random() % static_cast<std::uint64_t>(n_vocab));
  }
  return tokens;
}

Json row_json(const SpeedRow& row) {
  return {{"depth", row.depth},
          {"spec", row.spec},
          {"prefill_tps", row.prefill_tps},
          {"decode_ms", row.decode_ms},
          {"attention_ms", row.attention_ms},
          {"prefill_ratio", row.prefill_ratio},
          {"decode_ratio", row.decode_ratio},
          {"attention_ratio", row.attention_ratio},
          {"prefill_attention_ms", row.prefill_attention_ms},
          {"prefill_attention_ratio", row.prefill_attention_ratio},
          {"spread", row.spread}};
}

// What tables show: each measurement on a line of its own, under its usual name.
Json test_rows(const std::vector<SpeedRow>& found, std::int64_t n_prefill, std::int64_t n_decode) {
  Json rows = Json::array();
  const auto add = [&](const SpeedRow& row, const std::string& test, double tokens_per_second,
                       double ratio, double attention_ms, double attention_ratio) {
    rows.push_back({{"test", fmt::format("{} @ d{}", test, row.depth)},
                    {"memory", row.spec},
                    {"t/s", tokens_per_second},
                    {"ratio", ratio},
                    {"attention ms", attention_ms},
                    {"attention ratio", attention_ratio},
                    {"spread", test[0] == 't' ? Json(row.spread) : Json()}});
  };
  for (const SpeedRow& row : found) {
    if (n_prefill > 0) {
      add(row, fmt::format("pp{}", n_prefill), row.prefill_tps, row.prefill_ratio,
          row.prefill_attention_ms, row.prefill_attention_ratio);
    }
    add(row, fmt::format("tg{}", n_decode), 1e3 / row.decode_ms, row.decode_ratio, row.attention_ms,
        row.attention_ratio);
  }
  return rows;
}

Result<Report> run(const SpeedFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto specs, effective_specs(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(flags.model, console));
  const std::int64_t deepest = *std::max_element(flags.depths.begin(), flags.depths.end());
  const std::int64_t n_tokens = deepest + std::max(flags.n_decode, flags.n_prefill);
  VOLVELLE_RETURN_IF_ERROR(require_room(n_tokens, model.info().context_length, model,
                                        "the deepest measurement (-d with -p or -n)"));
  std::vector<TokenId> tokens = random_tokens(n_tokens, model.info().n_vocab);
  if (!flags.file.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(tokens, first_tokens(model, flags.file, n_tokens, console));
  }
  SpeedOptions options;
  options.depths = flags.depths;
  options.n_decode = flags.n_decode;
  options.n_prefill = flags.n_prefill;
  options.repetitions = flags.repetitions;
  options.against_engine = !flags.against.empty();
  options.n_threads = flags.model.threads;
  options.n_ubatch = flags.model.ubatch;
  options.deterministic = flags.model.deterministic;
  for (const MemorySpec& spec : specs) options.specs.push_back(to_string(spec));
  options.cancel = console.cancel();
  VOLVELLE_ASSIGN_OR_RETURN(const auto found,
                            run_speed(model, tokens, options, console.progress_sink()));
  // 0 is every hardware thread, as in the library.
  const int threads = flags.model.threads > 0
                          ? flags.model.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  console.note(fmt::format("measured with {} threads", threads));
  Json rows = Json::array();
  for (const SpeedRow& row : found) rows.push_back(row_json(row));
  Report report = make_bench_report({{"model", model.info().path.string()},
                                     {"model_fingerprint", model.info().fingerprint},
                                     {"engine", engine_version()},
                                     {"repetitions", flags.repetitions},
                                     {"n_decode", flags.n_decode},
                                     {"n_prefill", flags.n_prefill},
                                     {"threads", threads},
                                     {"ubatch", flags.model.ubatch}},
                                    std::move(rows), flags.output);
  if (flags.output.format != "json") {
    report.text =
        render_rows(test_rows(found, flags.n_prefill, flags.n_decode),
                    flags.output.format == "csv" ? TableFormat::kCsv : TableFormat::kMarkdown);
  }
  return report;
}

}  // namespace

void add_bench_speed(CLI::App& bench, Selected& selected) {
  add_command<SpeedFlags>(bench, selected, "speed", "Reading and decoding speed at depth", declare,
                          run);
}

}  // namespace volvelle::cli
