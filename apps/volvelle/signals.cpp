// The handler stores to one lock-free atomic and does nothing else: all that is safe in a handler.
#include "signals.hpp"

#include <atomic>
#include <csignal>

namespace volvelle::cli {

namespace {

static_assert(std::atomic<bool>::is_always_lock_free);
std::atomic<std::atomic<bool>*> cancel_flag{nullptr};
static_assert(std::atomic<std::atomic<bool>*>::is_always_lock_free);

extern "C" void on_signal(int) {
  if (std::atomic<bool>* flag = cancel_flag.load(std::memory_order_relaxed)) flag->store(true);
}

}  // namespace

void cancel_on_signals(const CancelToken& token) {
  static CancelToken kept = token;  // a copy shares the flag and keeps it alive until exit
  cancel_flag.store(&kept.flag());
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace volvelle::cli
