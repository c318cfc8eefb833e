// Entry of exact attention: choice of the path and the overload with its own threads.
#include "volvelle/attention/attend.hpp"

#include <thread>
#include <vector>

#include "attention/paths.hpp"
#include "kernels/attend_decode.hpp"

namespace volvelle {

static_assert(kTileRows == kTileKeys && kDecodeBlock <= kDecodeBlockMax);

void attend(const AttendTask& task, AttendWorkspace& workspace, int ith, int nth) noexcept {
  AttendWorkspace::Impl& impl = workspace.impl();
  if (task.n_tokens() == 0) return;
  if (!impl.fits(task.shape, nth)) {
    impl.not_finite.store(true,
                          std::memory_order_release);  // a caller's bug must not look like a result
    return;
  }
  if (task.n_tokens() <= kDecodeMaxTokens && !task.deterministic) {
    attend_decode(task, impl, ith, nth);
  } else {
    attend_tiled(task, impl, ith, nth);
  }
}

void attend(std::span<const AttendTask> tasks, AttendWorkspace& workspace, int ith,
            int nth) noexcept {
  if (tasks.size() == 1) return attend(tasks.front(), workspace, ith, nth);
  workspace.impl().not_finite.store(true, std::memory_order_release);
}

void attend(const AttendTask& task, AttendWorkspace& workspace, int n_threads) {
  std::vector<std::jthread> others;
  others.reserve(static_cast<std::size_t>(n_threads));
  for (int i = 1; i < n_threads; ++i) {
    others.emplace_back(
        [&task, &workspace, i, n_threads] { attend(task, workspace, i, n_threads); });
  }
  attend(task, workspace, 0, n_threads);
}

}  // namespace volvelle
