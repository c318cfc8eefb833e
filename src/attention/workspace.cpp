// Creation of the workspace and the checks that happen once, outside the hot path.
#include "attention/workspace.hpp"

#include <cmath>
#include <string>

namespace volvelle {
namespace {

Error bad_shape(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "attention shape: " + what};
}

}  // namespace

Status validate(const AttentionShape& shape) {
  if (shape.n_heads < 1 || shape.n_kv_heads < 1) {
    return bad_shape("expected at least one head and one KV head, got " +
                     std::to_string(shape.n_heads) + " and " + std::to_string(shape.n_kv_heads));
  }
  if (shape.n_heads % shape.n_kv_heads != 0) {
    return bad_shape("expected heads to be a multiple of KV heads, got " +
                     std::to_string(shape.n_heads) + " and " + std::to_string(shape.n_kv_heads));
  }
  for (const int dim : {shape.head_dim_k, shape.head_dim_v}) {
    if (dim < 1 || dim > kMaxHeadDim) {
      return bad_shape("expected head dimensions from 1 to " + std::to_string(kMaxHeadDim) +
                       ", got " + std::to_string(shape.head_dim_k) + " (K) and " +
                       std::to_string(shape.head_dim_v) + " (V)");
    }
  }
  if (!std::isfinite(shape.scale))
    return bad_shape("expected a finite scale, got " + std::to_string(shape.scale));
  if (!std::isfinite(shape.soft_cap) || shape.soft_cap < 0.0f) {
    return bad_shape("expected a finite soft cap of at least 0, got " +
                     std::to_string(shape.soft_cap));
  }
  return {};
}

Result<AttendWorkspace> AttendWorkspace::create(int max_threads, int max_heads, int max_head_dim_k,
                                                int max_head_dim_v) {
  if (max_threads < 1 || max_heads < 1 || max_head_dim_k < 1 || max_head_dim_v < 1 ||
      max_head_dim_k > kMaxHeadDim || max_head_dim_v > kMaxHeadDim) {
    return Error{ErrorCode::kInvalidArgument,
                 "attention workspace: expected positive sizes and head dimensions up to " +
                     std::to_string(kMaxHeadDim) + ", got " + std::to_string(max_threads) +
                     " threads, " + std::to_string(max_heads) + " heads, " +
                     std::to_string(max_head_dim_k) + " (K) and " + std::to_string(max_head_dim_v) +
                     " (V)"};
  }
  auto impl = std::make_unique<Impl>();
  impl->max_heads = max_heads;
  impl->max_head_dim_k = max_head_dim_k;
  impl->max_head_dim_v = max_head_dim_v;
  // One token's rows of one KV head (at most max_heads) always fit a query tile; groups are padded
  // to whole vectors.
  const std::int64_t rows = std::max<std::int64_t>(kTileQueryRows, max_heads) + kMaxGroupRows;
  const std::int64_t decode_rows = std::max<std::int64_t>(max_heads, kDecodeMaxQueries);
  impl->decode_slot_floats = states_floats(decode_rows, pad_lanes(max_head_dim_v));
  impl->arena_floats = 2 * impl->decode_slot_floats +
                       std::max(tiled_floats(rows, max_head_dim_k, max_head_dim_v),
                                impl->decode_slot_floats + decode_rows * pad_lanes(max_head_dim_k));
  impl->arena_floats = (impl->arena_floats + 31) / 32 * 32;  // threads share no pair of cache lines
  if (max_threads > 1)
    impl->partition_floats =
        kMaxPartitions * max_heads * states_floats(1, pad_lanes(max_head_dim_v));
  const auto bytes =
      static_cast<std::size_t>(impl->arena_floats * max_threads + impl->partition_floats) *
      sizeof(float);
  impl->memory.reset(
      static_cast<float*>(::operator new(bytes, std::align_val_t(64), std::nothrow)));
  if (!impl->memory) {
    return Error{ErrorCode::kResourceExhausted, "attention workspace: no memory for " +
                                                    std::to_string(bytes) +
                                                    " bytes; use fewer threads"};
  }
  impl->partitions = impl->memory.get() + impl->arena_floats * max_threads;
  impl->threads.resize(static_cast<std::size_t>(max_threads));
  for (int i = 0; i < max_threads; ++i) {
    Impl::Thread& thread = impl->threads[static_cast<std::size_t>(i)];
    thread.arena = impl->memory.get() + i * impl->arena_floats;
    thread.runs.resize(static_cast<std::size_t>(std::max(kDecodeBlock, kTileRows)));
  }
  return AttendWorkspace(std::move(impl));
}

AttendWorkspace::AttendWorkspace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AttendWorkspace::AttendWorkspace(AttendWorkspace&&) noexcept = default;
AttendWorkspace& AttendWorkspace::operator=(AttendWorkspace&&) noexcept = default;
AttendWorkspace::~AttendWorkspace() = default;

std::size_t AttendWorkspace::bytes() const noexcept {
  const auto n_threads = static_cast<std::int64_t>(impl_->threads.size());
  const std::int64_t floats = impl_->arena_floats * n_threads + impl_->partition_floats;
  std::size_t total = sizeof(Impl) + static_cast<std::size_t>(floats) * sizeof(float);
  for (const Impl::Thread& thread : impl_->threads)
    total += sizeof(thread) + thread.runs.size() * sizeof(KeyValueRun);
  return total;
}

bool AttendWorkspace::take_not_finite() noexcept {
  return impl_->not_finite.exchange(false, std::memory_order_acq_rel);
}

}  // namespace volvelle
