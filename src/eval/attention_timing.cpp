// See the header. Rows are written once before the clock runs: pages that were never touched would
// all be the system's one page of zeros, and be read from the cache.
#include "eval/attention_timing.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/result_macros.hpp"
#include "eval/statistics.hpp"

namespace volvelle {
namespace {

constexpr int kCalls = 5;

void touch(const RowBlock& block, const LayerShape& shape) {
  const RowBlock::LayerPlanes& planes = block.layers.front();
  const auto heads = static_cast<std::size_t>(shape.n_kv_heads);
  std::memset(planes.k, 0, heads * planes.k_head_stride);
  std::memset(planes.v, 0, heads * planes.v_head_stride);
}

std::vector<VisibleRows> visible_rows(const TimingRequest& request) {
  std::vector<VisibleRows> visible;
  for (std::int64_t i = 0; i < request.n_tokens; ++i) {
    const std::int64_t end = request.prefix + i + 1;
    const std::int64_t window = request.shape.window;
    visible.push_back({0, window > 0 ? std::max<std::int64_t>(0, end - window) : 0, end});
  }
  return visible;
}

}  // namespace

Result<double> time_attention(const TimingRequest& request, AttendWorkspace& workspace) {
  const LayerShape& shape = request.shape;
  const std::int64_t n_rows = request.prefix + request.n_tokens;
  const StoreLayout layout{{shape}, request.k_type, request.v_type};
  VOLVELLE_ASSIGN_OR_RETURN(const auto block, allocate_row_block(layout, n_rows));
  touch(*block, shape);
  const RowBlock::LayerPlanes& planes = block->layers.front();
  const KeyValueSegment segment{
      0, n_rows, planes.k, planes.v, planes.k_head_stride, planes.v_head_stride};
  const std::vector<VisibleRows> visible = visible_rows(request);
  const auto heads = static_cast<std::size_t>(request.n_heads);
  const auto tokens = static_cast<std::size_t>(request.n_tokens);
  const std::vector<float> q(tokens * heads * static_cast<std::size_t>(shape.head_dim_k), 0.5f);
  std::vector<float> out(tokens * heads * static_cast<std::size_t>(shape.head_dim_v));

  AttendTask task;
  task.shape = {request.n_heads,  shape.n_kv_heads, shape.head_dim_k,
                shape.head_dim_v, request.k_type,   request.v_type};
  task.segments = std::span(&segment, 1);
  task.visible = visible;
  task.q = q.data();
  task.q_head_stride = shape.head_dim_k;
  task.q_token_stride = static_cast<std::ptrdiff_t>(heads) * shape.head_dim_k;
  task.out = out.data();
  task.out_head_stride = shape.head_dim_v;
  task.out_token_stride = static_cast<std::ptrdiff_t>(heads) * shape.head_dim_v;
  VOLVELLE_RETURN_IF_ERROR(validate(task.shape));

  std::vector<double> seconds;
  for (int call = 0; call <= kCalls; ++call) {
    const auto start = Clock::now();
    attend(task, workspace, request.n_threads);
    if (call > 0) seconds.push_back(seconds_since(start));  // the first one warms up
  }
  return median(std::move(seconds));
}

}  // namespace volvelle
