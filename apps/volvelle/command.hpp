// How a subcommand plugs into the program.
//
// add_x() declares flags on a CLI11 app; when the user chose x, its callback leaves an action in
// `Selected`, and main() runs it after parsing. So usage errors and run errors never mix.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "console.hpp"
#include "output.hpp"

namespace volvelle::cli {

using Action = std::function<Result<Report>(Console&)>;

struct Selected {
  std::string command;  // "volvelle bench speed"
  CommonFlags flags;
  bool version = false;
  Action action;
};

void add_fold(CLI::App& parent, Selected& selected);
void add_ask(CLI::App& parent, Selected& selected);
void add_run(CLI::App& parent, Selected& selected);
void add_chat(CLI::App& parent, Selected& selected);
void add_inspect(CLI::App& parent, Selected& selected);
void add_capture(CLI::App& parent, Selected& selected);
void add_calibrate(CLI::App& parent, Selected& selected);
void add_analyze(CLI::App& parent, Selected& selected);
void add_audit(CLI::App& parent, Selected& selected);
void add_plan(CLI::App& parent, Selected& selected);
void add_bench(CLI::App& parent, Selected& selected);
void add_bench_speed(CLI::App& bench, Selected& selected);
void add_bench_drift(CLI::App& bench, Selected& selected);
void add_bench_needle(CLI::App& bench, Selected& selected);
void add_bench_perplexity(CLI::App& bench, Selected& selected);
void add_bench_kv(CLI::App& bench, Selected& selected);
void add_bench_index(CLI::App& bench, Selected& selected);
void add_bench_perturb(CLI::App& bench, Selected& selected);

/// Adds a subcommand with --json, -v and --version. `run(flags, console)` is called with the parsed
/// `Flags`; `declare(app, flags)` adds the subcommand's own options.
template <class Flags, class Declare, class Run>
CLI::App* add_command(CLI::App& parent, Selected& selected, const std::string& name,
                      const std::string& description, Declare declare, Run run) {
  CLI::App* app = parent.add_subcommand(name, description);
  app->add_flag("--json", selected.flags.json, "One JSON object on stdout");
  app->add_flag("-v,--verbose", selected.flags.verbose, "The engine's messages on stderr");
  app->add_flag("--version", selected.version, "Print the versions and exit");
  auto flags = std::make_shared<Flags>();
  declare(*app, *flags);
  const std::string prefix = parent.get_parent() == nullptr ? "" : parent.get_name() + " ";
  app->callback([&selected, flags, run, full = "volvelle " + prefix + name] {
    selected.command = full;
    selected.action = [flags, run](Console& console) { return run(*flags, console); };
  });
  return app;
}

/// Declares an option of a later version, so that using it is refused by name.
void add_unbuilt_option(CLI::App& app, const std::string& name);

}  // namespace volvelle::cli
