// The two ways of working behind attend(). All threads call share(), each with its own number; the
// last one to arrive calls finish(). Both skip the tasks that the other path takes.
#pragma once

#include <span>

#include "attention/workspace.hpp"
#include "volvelle/attention/attend.hpp"

namespace volvelle {

/// Whether a task takes the decode path. Its kernel reads rows once for all queries of a KV head
/// but computes them 4 at a time; from about 20 on, tiles are as fast or faster (bench `batch`).
inline bool takes_decode(const AttendTask& task) noexcept {
  const std::int64_t n = task.n_tokens();
  return !task.deterministic && (n == 1 || (n > 1 && n * task.shape.group() <= kDecodeMaxQueries));
}
inline bool takes_tiles(const AttendTask& task) noexcept {
  return task.n_tokens() > 0 && !takes_decode(task);
}

/// One of the nth threads of a call.
struct ThreadOf {
  int ith = 0;
  int nth = 1;
};

void decode_share(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                  ThreadOf thread) noexcept;
void decode_finish(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                   int nth) noexcept;

void tiled_share(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                 ThreadOf thread) noexcept;
void tiled_finish(std::span<const AttendTask> tasks, AttendWorkspace::Impl& workspace,
                  int nth) noexcept;

}  // namespace volvelle
