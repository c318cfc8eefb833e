// Cooperative cancellation. Thread-safe; copies share one flag, so a signal handler's thread can
// stop long work elsewhere.
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
