// Allocation of the workspace, statistics.
#include "index/topk_workspace.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "base/result_macros.hpp"
#include "bounds/dithered_variation.hpp"
#include "index/select.hpp"

namespace volvelle {
namespace {

/// Hands out aligned parts of one allocation; the first pass only counts.
class Carver {
 public:
  explicit Carver(float* memory) : memory_(memory) {}
  float* floats(std::int64_t n) {
    float* const at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (n + 15) / 16 * 16;
    return at;
  }
  std::int64_t used() const { return used_; }

 private:
  float* memory_;
  std::int64_t used_ = 0;
};

Result<AlignedFloats> allocate(std::int64_t floats, const std::string& advice) {
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  AlignedFloats memory(
      static_cast<float*>(::operator new(bytes, std::align_val_t(64), std::nothrow)));
  if (memory) return memory;
  return Error{ErrorCode::kResourceExhausted,
               "index: no memory for " + std::to_string(bytes) + " bytes of scratch; " + advice};
}

void place_fixed(TopkWorkspace::Impl& impl, Carver& carver) {
  const std::int64_t heads = impl.max_heads;
  const std::int64_t state = 2 * kLanePad + pad_lanes(impl.max_dim_v);
  impl.scaled = carver.floats(heads * impl.q_stride);
  impl.planes =
      reinterpret_cast<std::int8_t*>(carver.floats(heads * kScanPlanes * impl.code_stride / 4));
  impl.gains = carver.floats(heads * kScanPlanes * 3);
  impl.offsets = carver.floats(heads * kScanPlanes);
  impl.dithers = carver.floats(heads * impl.code_stride);
  impl.recent = carver.floats(heads * state);
  impl.piece_states = carver.floats(kMaxPieces * heads * state);
  impl.piece_sums = carver.floats(kMaxPieces * heads * impl.value_stride);
  for (TopkWorkspace::Impl::Thread& thread : impl.threads) {
    thread.raw = carver.floats(kScanPlanes * heads * kCodeTile);
    thread.gains = carver.floats(heads);
    thread.bytes = reinterpret_cast<std::int8_t*>(carver.floats(heads * kCodeTile / 4));
    thread.key = carver.floats(impl.q_stride);
    thread.turned = carver.floats(impl.q_stride);
    thread.coordinates = carver.floats(impl.code_stride);
    thread.block_planes =
        reinterpret_cast<std::int8_t*>(carver.floats(heads * kScanPlanes * impl.code_stride / 4));
    thread.block_gains = carver.floats(heads * kScanPlanes * 3);
    thread.block_offsets = carver.floats(heads * kScanPlanes);
    thread.block_bases = carver.floats(heads);
    thread.value = carver.floats(impl.value_stride);
  }
}

void place_growing(TopkWorkspace::Impl& impl, Carver& carver) {
  const std::int64_t tiles = impl.capacity_tiles;
  const std::int64_t heads = impl.max_heads;
  impl.selected = reinterpret_cast<std::int32_t*>(carver.floats(heads * tiles * kCodeTile));
  impl.weights = carver.floats(heads * tiles * kCodeTile);
  impl.saved = carver.floats(heads * tiles * kCodeTile);
  impl.tile_m = carver.floats(heads * tiles);
  impl.tile_d = carver.floats(heads * tiles);
  impl.tile_error = carver.floats(heads * tiles);
  impl.combined = carver.floats(heads * tiles * kCodeTile);
  impl.scratch = carver.floats(heads * tiles * kCodeTile);
  impl.block_max = carver.floats(heads * tiles * kCodeTile / kSelectBlock);
}

}  // namespace

void ReadStatistics::add(const ReadStatistics& other) noexcept {
  reads += other.reads;
  certified += other.certified;
  dense += other.dense;
  unindexed += other.unindexed;
  worst_bound = std::max(worst_bound, other.worst_bound);
  sum_bound += other.sum_bound;
  rows_seen += other.rows_seen;
  rows_read += other.rows_read;
  bytes_read += other.bytes_read;
  bytes_dense += other.bytes_dense;
  audited += other.audited;
  violations += other.violations;
  sum_variation += other.sum_variation;
  worst_variation = std::max(worst_variation, other.worst_variation);
  sum_output_error += other.sum_output_error;
}

Result<TopkWorkspace> TopkWorkspace::create(int max_threads, int max_heads, int max_head_dim_k,
                                            int max_head_dim_v) {
  if (max_threads < 1 || max_heads < 1 || max_head_dim_k < 1 || max_head_dim_v < 1 ||
      max_head_dim_k > kMaxHeadDim || max_head_dim_v > kMaxHeadDim) {
    return Error{ErrorCode::kInvalidArgument,
                 "index workspace: expected positive sizes and head dimensions up to " +
                     std::to_string(kMaxHeadDim)};
  }
  prepare_deviation_table();  // reads must not allocate
  auto impl = std::make_unique<Impl>();
  impl->max_heads = max_heads;
  impl->max_dim_v = max_head_dim_v;
  impl->q_stride = pad_lanes(max_head_dim_k);
  impl->code_stride = (max_head_dim_k + 63) / 64 * 64;
  impl->value_stride = (max_head_dim_v + 63) / 64 * 64;
  impl->threads.resize(static_cast<std::size_t>(max_threads));
  Carver count(nullptr);
  place_fixed(*impl, count);
  impl->fixed_floats = static_cast<std::size_t>(count.used());
  VOLVELLE_ASSIGN_OR_RETURN(impl->fixed, allocate(count.used(), "use fewer threads"));
  Carver carver(impl->fixed.get());
  place_fixed(*impl, carver);
  const auto heads = static_cast<std::size_t>(max_heads);
  impl->queries.resize(heads);
  impl->piece_tails.resize(heads * static_cast<std::size_t>(kMaxPieces));
  impl->top.resize(heads);
  impl->total.resize(heads);
  impl->n_selected.resize(heads);
  impl->dense.resize(heads);
  impl->bounds.resize(heads);
  for (Impl::Thread& thread : impl->threads) {
    thread.runs.resize(static_cast<std::size_t>(kRunsAtOnce));
    thread.products.resize(static_cast<std::size_t>(impl->code_stride));
  }
  return TopkWorkspace(std::move(impl));
}

TopkWorkspace::TopkWorkspace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TopkWorkspace::TopkWorkspace(TopkWorkspace&&) noexcept = default;
TopkWorkspace& TopkWorkspace::operator=(TopkWorkspace&&) noexcept = default;
TopkWorkspace::~TopkWorkspace() = default;

Status TopkWorkspace::reserve(std::int64_t n_tiles) {
  Impl& impl = *impl_;
  if (n_tiles <= impl.capacity_tiles) return {};
  // By a quarter more than asked for, so that a growing memory seldom allocates.
  const std::int64_t before = std::exchange(impl.capacity_tiles, n_tiles + n_tiles / 4 + 16);
  Carver count(nullptr);
  place_growing(impl, count);
  Result<AlignedFloats> memory = allocate(count.used(), "use a shorter context");
  if (!memory.ok()) {
    impl.capacity_tiles = before;
    Carver old(impl.growing.get());
    place_growing(impl, old);
    return memory.error();
  }
  impl.growing = std::move(*memory);
  impl.growing_floats = static_cast<std::size_t>(count.used());
  Carver carver(impl.growing.get());
  place_growing(impl, carver);
  return {};
}

bool TopkWorkspace::take_not_finite() noexcept {
  return impl_->not_finite.exchange(false, std::memory_order_acq_rel);
}

ReadStatistics TopkWorkspace::take_statistics() noexcept {
  ReadStatistics total;
  for (Impl::Thread& thread : impl_->threads) total.add(std::exchange(thread.statistics, {}));
  return total;
}

std::size_t TopkWorkspace::bytes() const noexcept {
  return (impl_->fixed_floats + impl_->growing_floats) * sizeof(float);
}

}  // namespace volvelle
