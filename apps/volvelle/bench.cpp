// `volvelle bench`: the parent of the benches, and their output.
#include "bench.hpp"

#include <algorithm>
#include <utility>

#include "base/result_macros.hpp"

namespace volvelle::cli {

void add_bench_output(CLI::App& app, BenchOutput& output) {
  app.add_option("-o,--output", output.format, "Format of the table on stdout")
      ->check(CLI::IsMember({"md", "json", "csv"}))
      ->capture_default_str();
}

void add_memory_list_flags(CLI::App& app, MemoryFlags& flags) {
  app.add_option("--memory", flags.spec, "Memory specs, separated by ';'")->capture_default_str();
  add_cache_type_flags(app, flags);
}

Result<std::vector<MemorySpec>> effective_specs(const MemoryFlags& flags) {
  std::vector<MemorySpec> specs;
  for (std::size_t begin = 0; begin <= flags.spec.size();) {
    const std::size_t end = std::min(flags.spec.find(';', begin), flags.spec.size());
    MemoryFlags one = flags;
    one.spec = flags.spec.substr(begin, end - begin);
    VOLVELLE_ASSIGN_OR_RETURN(MemorySpec spec, effective_spec(one));
    specs.push_back(std::move(spec));
    begin = end + 1;
  }
  return specs;
}

Report make_bench_report(Json head, Json rows, const BenchOutput& output) {
  Report report;
  if (output.format != "json") {
    report.text =
        render_rows(rows, output.format == "csv" ? TableFormat::kCsv : TableFormat::kMarkdown);
  }
  report.json = std::move(head);
  report.json["rows"] = std::move(rows);
  if (output.format == "json") report.text = to_line(report.json) + "\n";
  return report;
}

void add_bench(CLI::App& parent, Selected& selected) {
  CLI::App* bench = parent.add_subcommand("bench", "Measure speed, drift, recall and perplexity");
  bench->require_subcommand(1);
  add_bench_speed(*bench, selected);
  add_bench_drift(*bench, selected);
  add_bench_needle(*bench, selected);
  add_bench_perplexity(*bench, selected);
  add_bench_kv(*bench, selected);
  add_bench_index(*bench, selected);
  add_bench_perturb(*bench, selected);
}

}  // namespace volvelle::cli
