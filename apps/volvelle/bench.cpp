// `volvelle bench`: the parent of the benches, and their output.
#include "bench.hpp"

#include <utility>

namespace volvelle::cli {

void add_bench_output(CLI::App& app, BenchOutput& output) {
  app.add_option("-o,--output", output.format, "Format of the table on stdout")
      ->check(CLI::IsMember({"md", "json", "csv"}))
      ->capture_default_str();
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
  CLI::App* bench = parent.add_subcommand("bench", "Measure speed, drift and recall");
  bench->require_subcommand(1);
  add_bench_speed(*bench, selected);
  add_bench_drift(*bench, selected);
  add_bench_needle(*bench, selected);
}

}  // namespace volvelle::cli
