// The program `volvelle`: chooses a subcommand, runs it, turns its result into output and exit
// code.
//
// Exit codes: 0 good, 1 failed, 2 wrong usage, 3 a verification or certificate failed, 130
// interrupted. An error is one line on stderr, and with --json also the one object on stdout.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <sstream>
#include <system_error>

#include "command.hpp"
#include "engine_threads.hpp"
#include "options.hpp"
#include "signals.hpp"
#include "std_streams.hpp"

namespace volvelle::cli {

namespace {

// Commands of the design that a later version brings. They are not listed in --help.
constexpr std::array kLaterCommands{"train", "serve"};
constexpr std::array kLaterBenches{"stream", "recall", "mqar"};

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

// The exit code for a failed write to stdout: a full disk behind a redirection must not look like
// success. A reader that went away knows why, so nothing is said then.
int fail_output(Console& console, int error) {
  if (error == EINTR) {
    console.error({ErrorCode::kCancelled, "writing stdout: interrupted"});
    return kInterrupted;
  }
  if (error != EPIPE) {
    console.error({ErrorCode::kIo, fmt::format("writing stdout failed ({}): the output is not "
                                               "complete",
                                               std::generic_category().message(error))});
  }
  return kFailed;
}

int print_all(Console& console, const std::string& text) {
  const int error = console.print(text);
  return error == 0 ? 0 : fail_output(console, error);
}

int fail(Console& console, const Error& error) {
  console.error(error);
  if (console.json()) {
    const Json object = {{"code", to_string(error.code)}, {"message", error.message}};
    console.print(to_line({{"error", object}}) + "\n");
  }
  return exit_code(error.code);
}

int print_version(Console& console) {
  const Json object = {{"version", VOLVELLE_VERSION}, {"engine", engine_version()}};
  const std::string text = fmt::format("volvelle {}, {}\n", VOLVELLE_VERSION, engine_version());
  return print_all(console, console.json() ? to_line(object) + "\n" : text);
}

// The words at the start of the arguments: {"fold"}, {"bench", "speed"}; flags without a value may
// stand between them.
std::vector<std::string> command_names(const std::vector<std::string>& arguments) {
  constexpr std::array kBareFlags{"--json", "--verbose", "-v", "--help", "-h"};
  std::vector<std::string> names;
  for (const std::string& argument : arguments) {
    const auto same = [&](const char* flag) { return argument == flag; };
    if (std::any_of(kBareFlags.begin(), kBareFlags.end(), same)) continue;
    if (argument.empty() || argument[0] == '-') break;
    names.push_back(argument);
    if (names.size() == 2 || argument != "bench") break;
  }
  return names;
}

// "volvelle fold", as far as the arguments say; for errors found while parsing.
std::string command_of(const std::vector<std::string>& names) {
  std::string command = "volvelle";
  for (const std::string& name : names) command.append(" ").append(name);
  return command;
}

// What to say about a command that does not exist; empty if all do.
std::string unknown_command(CLI::App& app, const std::vector<std::string>& names) {
  CLI::App* parent = &app;
  for (const std::string& name : names) {
    std::string known;
    CLI::App* found = nullptr;
    for (CLI::App* sub : parent->get_subcommands([](CLI::App*) { return true; })) {
      known.append(known.empty() ? "" : ", ").append(sub->get_name());
      if (sub->get_name() == name) found = sub;
    }
    if (found == nullptr) {
      return fmt::format("'{}' is not a {}command: use one of {}", name,
                         parent == &app ? "" : parent->get_name() + " ", known);
    }
    parent = found;
  }
  return {};
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
  add_chat(app, selected);
  add_inspect(app, selected);
  add_capture(app, selected);
  add_calibrate(app, selected);
  add_analyze(app, selected);
  add_audit(app, selected);
  add_plan(app, selected);
  add_bench(app, selected);
  app.footer(
      "A spec describes a memory: 'full' (exact, the default), 'sink(4)+window(4096)', "
      "'full+kv(k=f32,v=f32)'.\nExit codes: 0 good, 1 failed, 2 wrong usage, 3 verification "
      "failed, "
      "130 interrupted.");
}

int run_action(const Selected& selected, const CancelToken& cancel) {
  Console console(selected.command, selected.flags, cancel);
  Result<Report> result = selected.action(console);
  console.end_progress();
  // First, because streaming into nowhere stops the action, which then reports an interruption.
  if (console.stdout_error() != 0) return fail_output(console, console.stdout_error());
  if (!result.ok()) return fail(console, result.error());
  const Report& report = *result;
  std::string text = report.text;
  if (console.json()) text = report.json.is_null() ? "" : to_line(report.json) + "\n";
  const int printed = text.empty() ? 0 : print_all(console, text);
  return printed != 0 ? printed : report.exit_code;
}

int run_program(int argc, char** argv, const CancelToken& cancel) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  // Known before parsing, so that even an error of parsing keeps the promise of one JSON object.
  const auto options_end = std::find(given.begin(), given.end(), "--");
  const bool json = std::find(given.begin(), options_end, "--json") != options_end;
  const std::vector<std::string> names = command_names(given);
  Console console(command_of(names), {.json = json}, cancel);
  if (is_later_command(names)) return fail(console, usage_error("this version does not have it"));

  CLI::App app("Long-context memory for language models: llama.cpp computes, Volvelle remembers.",
               "volvelle");
  Selected selected;
  declare_program(app, selected);
  // Without a subcommand and with unknown flags --version must still work, as in other programs.
  const bool version = std::find(given.begin(), options_end, "--version") != options_end;
  if (version) return print_version(console);
  app.require_subcommand(1);
  const std::string unknown = unknown_command(app, names);
  if (!unknown.empty()) {
    Console top("volvelle", {.json = json}, cancel);
    return fail(top, usage_error(unknown));
  }
  try {
    auto arguments = expand_short_flags(given);
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    app.exit(help, text, text);
    return print_all(console, text.str());
  } catch (const CLI::ParseError& error) {
    return fail(console, usage_error(error.what()));
  }
  return run_action(selected, cancel);
}

}  // namespace

}  // namespace volvelle::cli

int main(int argc, char** argv) {
  volvelle::cli::settle_engine_threads(argv);
  const volvelle::CancelToken cancel = volvelle::cli::cancel_on_signals();
  volvelle::cli::open_missing_streams();
  try {
    return volvelle::cli::run_program(argc, argv, cancel);
  } catch (const std::exception& error) {
    // In pieces: putting them together could throw once more.
    volvelle::cli::write_stderr("volvelle: internal error: ");
    volvelle::cli::write_stderr(error.what());
    volvelle::cli::write_stderr("\n");
    return 1;
  }
}
