// What the benches share: the table on stdout, or the JSON object with `rows`.
#pragma once

#include <string>

#include "command.hpp"
#include "options.hpp"

namespace volvelle::cli {

struct BenchOutput {
  std::string format = "md";
};
/// -o md|json|csv
void add_bench_output(CLI::App& app, BenchOutput& output);

/// --memory with specs separated by ';', and the cache types.
void add_memory_list_flags(CLI::App& app, MemoryFlags& flags);
/// The specs that they describe.
Result<std::vector<MemorySpec>> effective_specs(const MemoryFlags& flags);

/// `head` (model, engine, settings) with `rows` behind it; the text is the table in the format that
/// was asked for.
Report make_bench_report(Json head, Json rows, const BenchOutput& output);

}  // namespace volvelle::cli
