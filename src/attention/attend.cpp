// Entry of exact attention: both paths one after the other on each thread, without a barrier
// between tasks or paths, then one counter of arrivals; and the overloads for one task and with own
// threads.
#include "volvelle/attention/attend.hpp"

#include <thread>
#include <vector>

#include "attention/paths.hpp"
#include "kernels/attend_decode.hpp"

namespace volvelle {

static_assert(kTileRows == kTileKeys && kDecodeBlock <= kDecodeBlockMax);

void attend(std::span<const AttendTask> tasks, AttendWorkspace& workspace, int ith,
            int nth) noexcept {
  AttendWorkspace::Impl& impl = workspace.impl();
  bool fits = tasks.size() <= static_cast<std::size_t>(kMaxTasks);
  for (const AttendTask& task : tasks) fits = fits && impl.fits(task.shape, nth);
  if (!fits) {  // a caller's bug must not look like a result
    impl.not_finite.store(true, std::memory_order_release);
    return;
  }
  decode_share(tasks, impl, {ith, nth});
  tiled_share(tasks, impl, {ith, nth});
  if (impl.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != nth) return;
  decode_finish(tasks, impl, nth);
  tiled_finish(tasks, impl, nth);
  // The caller's barrier publishes both to the next call.
  impl.next_item.store(0, std::memory_order_relaxed);
  impl.arrived.store(0, std::memory_order_relaxed);
}

void attend(const AttendTask& task, AttendWorkspace& workspace, int ith, int nth) noexcept {
  attend(std::span<const AttendTask>(&task, 1), workspace, ith, nth);
}

void attend(std::span<const AttendTask> tasks, AttendWorkspace& workspace, int n_threads) {
  std::vector<std::jthread> others;
  others.reserve(static_cast<std::size_t>(n_threads));
  for (int i = 1; i < n_threads; ++i) {
    others.emplace_back(
        [tasks, &workspace, i, n_threads] { attend(tasks, workspace, i, n_threads); });
  }
  attend(tasks, workspace, 0, n_threads);
}

void attend(const AttendTask& task, AttendWorkspace& workspace, int n_threads) {
  attend(std::span<const AttendTask>(&task, 1), workspace, n_threads);
}

}  // namespace volvelle
