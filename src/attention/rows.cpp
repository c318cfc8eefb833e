// Segments cut into runs. O(log segments + runs) per call.
#include "attention/rows.hpp"

namespace volvelle {

std::int64_t append_runs(const AttendTask& task, int head, RowRange range, std::int64_t origin,
                         KeyValueRun* runs, std::int64_t n) noexcept {
  if (range.size() == 0) return n;
  const std::size_t k_row = row_bytes(task.shape.k_type, task.shape.head_dim_k);
  const std::size_t v_row = row_bytes(task.shape.v_type, task.shape.head_dim_v);
  auto segment = std::partition_point(
      task.segments.begin(), task.segments.end(),
      [&](const KeyValueSegment& s) { return s.first_row + s.n_rows <= range.begin; });
  for (; segment != task.segments.end() && segment->first_row < range.end; ++segment) {
    const RowRange part =
        intersect({segment->first_row, segment->first_row + segment->n_rows}, range);
    if (part.size() == 0) continue;
    const auto skip = static_cast<std::size_t>(part.begin - segment->first_row);
    const auto h = static_cast<std::size_t>(head);
    runs[n++] = {segment->k + h * segment->k_head_stride + skip * k_row,
                 segment->v + h * segment->v_head_stride + skip * v_row, part.size(),
                 part.begin - origin};
  }
  return n;
}

}  // namespace volvelle
