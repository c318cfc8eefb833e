// Cooperative cancellation: long work asks between steps whether it should stop. Copies share one
// flag. Thread-safe; the flag is lock-free, so a signal handler may set it. Work that stops leaves
// its state as it was before the step it gave up.
#pragma once

#include <atomic>
#include <memory>

namespace volvelle {

class CancelToken {
 public:
  CancelToken() : flag_(std::make_shared<std::atomic<bool>>(false)) {}
  void cancel() noexcept { flag_->store(true, std::memory_order_relaxed); }
  bool cancelled() const noexcept { return flag_->load(std::memory_order_relaxed); }
  /// The flag itself: lock-free, so it may be set inside a signal handler.
  std::atomic<bool>& flag() noexcept { return *flag_; }

 private:
  std::shared_ptr<std::atomic<bool>> flag_;
};

}  // namespace volvelle
