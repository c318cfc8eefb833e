// The program `volvelle`: chooses a subcommand, runs it, turns its result into output and exit
// code.
//
// Exit codes: 0 good, 1 failed, 2 wrong usage, 3 a verification or certificate failed, 130
// interrupted. An error is one line on stderr, and with --json also the one object on stdout.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>

#include "command.hpp"
#include "options.hpp"
#include "signals.hpp"

namespace volvelle::cli {

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kVerificationFailed = 3;
constexpr int kInterrupted = 130;

// Commands of the design that a later version brings. They are not listed in --help.
constexpr std::array kLaterCommands{"chat", "analyze", "calibrate", "train", "serve", "plan"};
constexpr std::array kLaterBenches{"kv", "stream", "perplexity", "perturb", "recall", "mqar"};

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return kUsage;
    case ErrorCode::kVerification:
      return kVerificationFailed;
    case ErrorCode::kCancelled:
      return kInterrupted;
    default:
      return kFailed;
  }
}

// True if everything reached stdout; a full disk behind a redirection must not look like success.
bool print_stdout(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return std::fflush(stdout) == 0 && written && std::ferror(stdout) == 0;
}

int fail(Console& console, const Error& error) {
  console.error(error);
  if (console.json()) {
    const Json object = {{"code", to_string(error.code)}, {"message", error.message}};
    print_stdout(to_line({{"error", object}}) + "\n");
  }
  return exit_code(error.code);
}

int print_version(bool json) {
  const Json object = {{"version", VOLVELLE_VERSION}, {"engine", engine_version()}};
  const std::string text = fmt::format("volvelle {}, {}\n", VOLVELLE_VERSION, engine_version());
  return print_stdout(json ? to_line(object) + "\n" : text) ? 0 : kFailed;
}

// "volvelle fold", as far as the arguments say; for errors found while parsing.
std::string command_of(const std::vector<std::string>& arguments) {
  std::string command = "volvelle";
  for (std::size_t i = 0; i < arguments.size() && i < 2; ++i) {
    const bool is_name = !arguments[i].empty() && arguments[i][0] != '-';
    if (!is_name || (i == 1 && arguments[0] != "bench")) break;
    command.append(" ").append(arguments[i]);
  }
  return command;
}

template <std::size_t N>
bool contains(const std::array<const char*, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_later_command(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return false;
  if (contains(kLaterCommands, arguments[0])) return true;
  return arguments.size() > 1 && arguments[0] == "bench" && contains(kLaterBenches, arguments[1]);
}

void declare_program(CLI::App& app, Selected& selected) {
  app.add_flag("--version", selected.version, "Print the versions and exit");
  app.add_flag("--json", selected.flags.json, "One JSON object on stdout")->group("");
  add_fold(app, selected);
  add_ask(app, selected);
  add_run(app, selected);
  add_inspect(app, selected);
  add_capture(app, selected);
  add_audit(app, selected);
  add_bench(app, selected);
  app.footer(
      "A spec describes a memory: 'full' (exact, the default), 'sink(4)+window(4096)', "
      "'full+kv(k=f32,v=f32)'.\nExit codes: 0 good, 1 failed, 2 wrong usage, 3 verification "
      "failed, "
      "130 interrupted.");
}

int run_action(const Selected& selected) {
  Console console(selected.command, selected.flags);
  cancel_on_signals(console.cancel());
  Result<Report> result = selected.action(console);
  console.end_progress();
  if (!result.ok()) return fail(console, result.error());
  const Report& report = *result;
  const std::string text = console.json() ? to_line(report.json) + "\n" : report.text;
  if (print_stdout(text)) return 0;
  return fail(console, {ErrorCode::kIo, "writing stdout failed: the output is not complete"});
}

int run_program(int argc, char** argv) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  // Known before parsing, so that even an error of parsing keeps the promise of one JSON object.
  const auto options_end = std::find(given.begin(), given.end(), "--");
  const bool json = std::find(given.begin(), options_end, "--json") != options_end;
  Console console(command_of(given), {.json = json});
  if (is_later_command(given)) return fail(console, usage_error("this version does not have it"));

  CLI::App app("Long-context memory for language models: llama.cpp computes, Volvelle remembers.",
               "volvelle");
  Selected selected;
  declare_program(app, selected);
  // Without a subcommand and with unknown flags --version must still work, as in other programs.
  const bool version = std::find(given.begin(), options_end, "--version") != options_end;
  if (version) return print_version(json);
  app.require_subcommand(1);
  try {
    auto arguments = expand_short_flags(given);
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(console, usage_error(error.what()));
  }
  return run_action(selected);
}

}  // namespace

}  // namespace volvelle::cli

int main(int argc, char** argv) {
  try {
    return volvelle::cli::run_program(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "volvelle: internal error: {}\n", error.what());
    return 1;
  }
}
