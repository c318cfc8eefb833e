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
std::atomic<bool> surviving{false};  // see survive_interrupts()
std::atomic<bool> end_wanted{false};
std::atomic<int> interrupts{0};  // since the last take_interrupt()
static_assert(std::atomic<int>::is_always_lock_free);

void set_action(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(number, &action, nullptr);  // no SA_RESTART: a blocked read has to return
}

extern "C" void on_signal(int number) {
  const int kept = errno;
  if (std::atomic<bool>* flag = cancel_flag.load(std::memory_order_relaxed)) flag->store(true);
  const bool first = number == SIGINT && interrupts.fetch_add(1) == 0;
  if (!(first && surviving.load())) {
    end_wanted.store(true);
    set_action(SIGINT, SIG_DFL);
    set_action(SIGTERM, SIG_DFL);
    if (number == SIGHUP) set_action(SIGHUP, SIG_DFL);
  }
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

void survive_interrupts() { surviving.store(true); }

Interrupt take_interrupt() {
  std::atomic<bool>& flag = *cancel_flag.load();
  if (end_wanted.load()) return Interrupt::kEnd;
  const bool set = flag.exchange(false);
  if (interrupts.exchange(0) > 0) return Interrupt::kStop;
  if (!set) return Interrupt::kNone;
  flag.store(true);
  return Interrupt::kEnd;
}

}  // namespace volvelle::cli
