// Running a piece of a test in a process of its own, which may die, hang or ask for too much memory
// without taking the test along. The parent must not have started the engine's threads.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

namespace volvelle::test {

inline constexpr int kThrew = 100;

struct ChildResult {
  int exit_code = -1;  // -1: ended by a signal; kThrew: an exception came out of the piece
  int signal = 0;
  std::string text;  // what the piece returned, or the last lines that it wrote to stderr
};

struct ChildLimits {
  unsigned cpu_seconds = 20;
  std::size_t address_space = std::size_t{3} << 30;  // the machine's libraries alone take 1 GiB
};

/// What the child found out: its exit code and one text.
struct ChildReport {
  int exit_code = 0;
  std::string text;
};

inline bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;  // sanitizers reserve terabytes of address space
#else
  return false;
#endif
}

inline std::string drain(int descriptor) {
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = ::read(descriptor, buffer, sizeof(buffer))) > 0;) {
    out.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(descriptor);
  return out;
}

inline ChildResult run_in_child(const std::function<ChildReport()>& work, ChildLimits limits = {}) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return {.text = "no pipe"};
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe_ends[0]);
    ::dup2(pipe_ends[1], STDERR_FILENO);
    ::setenv("GGML_NO_BACKTRACE", "1", 1);  // it would start a debugger
    const rlimit cpu{limits.cpu_seconds, limits.cpu_seconds + 1};
    ::setrlimit(RLIMIT_CPU, &cpu);
    const rlimit core{0, 0};
    ::setrlimit(RLIMIT_CORE, &core);
    const rlimit memory{limits.address_space, limits.address_space};
    if (!sanitized()) ::setrlimit(RLIMIT_AS, &memory);
    ChildReport report;
    try {
      report = work();
    } catch (const std::exception& thrown) {
      report = {kThrew, thrown.what()};
    }
    const std::string text = "\n@" + report.text;
    [[maybe_unused]] const ssize_t written = ::write(pipe_ends[1], text.data(), text.size());
    ::_exit(report.exit_code);
  }
  ::close(pipe_ends[1]);
  ChildResult result;
  result.text = drain(pipe_ends[0]);
  if (const std::size_t at = result.text.rfind("\n@"); at != std::string::npos) {
    result.text.erase(0, at + 2);
  } else if (result.text.size() > 600) {
    result.text.erase(0, result.text.size() - 600);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace volvelle::test
