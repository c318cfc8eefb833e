// The handler stores to one lock-free atomic and restores default actions: both are safe in it.
#include "signals.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>

namespace volvelle::cli {

namespace {

static_assert(std::atomic<bool>::is_always_lock_free);
std::atomic<std::atomic<bool>*> cancel_flag{nullptr};
static_assert(std::atomic<std::atomic<bool>*>::is_always_lock_free);

void set_action(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(number, &action, nullptr);  // no SA_RESTART: a blocked read has to return
}

extern "C" void on_signal(int number) {
  const int kept = errno;
  if (std::atomic<bool>* flag = cancel_flag.load(std::memory_order_relaxed)) flag->store(true);
  set_action(SIGINT, SIG_DFL);
  set_action(SIGTERM, SIG_DFL);
  if (number == SIGHUP) set_action(SIGHUP, SIG_DFL);
  errno = kept;
}

}  // namespace

CancelToken cancel_on_signals() {
  static CancelToken token;  // copies share the flag, and this one keeps it alive until exit
  cancel_flag.store(&token.flag());
  set_action(SIGPIPE, SIG_IGN);
  set_action(SIGXFSZ, SIG_IGN);
  set_action(SIGINT, on_signal);
  set_action(SIGTERM, on_signal);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) set_action(SIGHUP, on_signal);  // nohup ignores it
  return token;
}

}  // namespace volvelle::cli
