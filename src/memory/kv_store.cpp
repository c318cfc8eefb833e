// The append-only, shareable list of row blocks of one sequence.
//
// Invariants: extents are ascending and every extent uses the first rows of its block; only the
// last one may be empty; the last block is extended in place only if it ends at the store's last
// row, is writable, and no other store holds it - else a new block begins. So what another store
// sees never changes. Cost: append is one conversion per element; clone and truncate touch no row.
#include "volvelle/memory/kv_store.hpp"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>

#include "base/result_macros.hpp"
#include "kernels/convert.hpp"

namespace volvelle {
namespace {

Error store_error(const std::string& message) {
  return Error{ErrorCode::kInvalidArgument, "kv store: " + message};
}

bool strictly_ascending(std::span<const Position> positions) {
  const auto not_less = [](Position a, Position b) { return a >= b; };
  return std::adjacent_find(positions.begin(), positions.end(), not_less) == positions.end();
}

}  // namespace

KvStore::KvStore(StoreLayout layout, std::int64_t block_rows)
    : layout_(std::move(layout)), block_rows_(block_rows), segments_(layout_.layers.size()) {}

Status KvStore::check_adopt(const RowBlock* block, std::span<const Position> positions) const {
  const auto n = static_cast<std::int64_t>(positions.size());
  if (block == nullptr || block->layers.size() != layout_.layers.size()) {
    return store_error("adopt: the block does not have the store's " +
                       std::to_string(layout_.layers.size()) + " layers");
  }
  for (std::size_t i = 0; i < layout_.layers.size(); ++i) {
    if (layout_.layers[i].n_kv_heads == 0) continue;
    if (block->layers[i].k != nullptr && block->layers[i].v != nullptr) continue;
    return store_error("adopt: the block has no rows of layer " + std::to_string(i) +
                       "; it belongs to another group of layers");
  }
  if (!extents_.empty() || n_rows_ != 0) return store_error("adopt: the store is not empty");
  if (n > block->capacity || (n == 0 && !block->writable)) {
    return store_error("adopt: " + std::to_string(n) + " rows do not fit a block of " +
                       std::to_string(block->capacity) +
                       ", or nothing could ever be written to it");
  }
  if (!strictly_ascending(positions) || (n > 0 && positions.front() < Position(0))) {
    return store_error("adopt: positions must be ascending and not negative");
  }
  return {};
}

/// Finished rows [first_row, first_row + n_rows) of a block as a block of their own.
std::shared_ptr<RowBlock> KvStore::part_of(const std::shared_ptr<RowBlock>& block,
                                           std::int64_t first_row, std::int64_t n_rows) const {
  auto part = std::make_shared<RowBlock>(*block);
  part->owner = block;
  part->capacity = n_rows;
  part->writable = false;
  for (std::size_t i = 0; i < layout_.layers.size(); ++i) {
    const LayerShape& shape = layout_.layers[i];
    if (shape.n_kv_heads == 0) continue;
    const auto skip = static_cast<std::size_t>(first_row);
    part->layers[i].k += skip * row_bytes(layout_.k_type, shape.head_dim_k);
    part->layers[i].v += skip * row_bytes(layout_.v_type, shape.head_dim_v);
  }
  return part;
}

Status KvStore::adopt(std::shared_ptr<RowBlock> block, std::span<const Position> positions,
                      std::int64_t n_rows) {
  VOLVELLE_RETURN_IF_ERROR(check_adopt(block.get(), positions));
  const auto n = static_cast<std::int64_t>(positions.size());
  n_rows_ = n == 0 ? n_rows : std::max(n_rows, positions.back().value() + 1);
  for (std::int64_t row = 0; row < n_rows_; ++row) positions_.emplace_back(row);
  // One extent for each run of rows that follow each other; mostly there are one or two.
  for (std::int64_t begin = 0, end = 0; begin < n; begin = end) {
    const std::int64_t first = positions[static_cast<std::size_t>(begin)].value();
    while (end < n && positions[static_cast<std::size_t>(end)].value() - end == first - begin)
      ++end;
    const bool whole = begin == 0 && end == n;
    extents_.push_back(
        {whole ? block : part_of(block, begin, end - begin), first, end - begin, {}});
  }
  if (n == 0) extents_.push_back({std::move(block), n_rows_, 0, {}});
  refresh_segments(0);
  return {};
}

Status KvStore::check_append(std::span<const Position> positions) const {
  if (n_pending_ != 0) return store_error("append: the previous append is still pending");
  if (positions.empty()) return store_error("append: no tokens");
  const Position last = n_rows_ > 0 ? positions_.back() : Position(-1);
  if (!strictly_ascending(positions) || positions.front() <= last) {
    return store_error("append: positions must be ascending and behind the last row's, which is " +
                       std::to_string(last.value()) + "; the first new one is " +
                       std::to_string(positions.front().value()));
  }
  return {};
}

Status KvStore::begin_append(std::span<const Position> positions) {
  VOLVELLE_RETURN_IF_ERROR(check_append(positions));
  n_pending_ = static_cast<std::int64_t>(positions.size());
  const std::size_t first_changed = extents_.empty() ? 0 : extents_.size() - 1;
  if (Status reserved = reserve_slots(n_pending_); !reserved.ok()) {
    rollback();
    return reserved;
  }
  positions_.insert(positions_.end(), positions.begin(), positions.end());
  refresh_segments(first_changed);
  return {};
}

bool KvStore::can_extend_last() const noexcept {
  if (extents_.empty()) return false;
  const Extent& last = extents_.back();
  return last.block->writable && last.n_rows < last.block->capacity && last.lease.sole();
}

// A new block must not begin while a file still waits for rows: they would be missing in it.
Status KvStore::check_not_leaving_file(std::int64_t next_row) const {
  if (extents_.empty()) return {};
  const Extent& last = extents_.back();
  const bool waits = !last.block->anonymous && last.block->writable &&
                     last.n_rows < last.block->capacity && last.first_row + last.n_rows == next_row;
  if (!waits) return {};
  return store_error(
      "append: these rows are being written to a file, which can not be shared with "
      "a clone; finish the file first");
}

Status KvStore::reserve_slots(std::int64_t n) {
  slots_.clear();
  slots_.reserve(static_cast<std::size_t>(n));
  while (static_cast<std::int64_t>(slots_.size()) < n) {
    const std::int64_t next_row = n_rows_ + static_cast<std::int64_t>(slots_.size());
    // After a release the last extent may lie before forgotten rows; it can not be continued.
    const bool adjoins =
        !extents_.empty() && extents_.back().first_row + extents_.back().n_rows == next_row;
    if (!adjoins || !can_extend_last()) {
      VOLVELLE_RETURN_IF_ERROR(check_not_leaving_file(next_row));
      if (!extents_.empty() && extents_.back().n_rows == 0) extents_.pop_back();
      VOLVELLE_ASSIGN_OR_RETURN(auto block, allocate_row_block(layout_, block_rows_));
      extents_.push_back({std::move(block), next_row, 0, {}});
    }
    Extent& last = extents_.back();
    const std::int64_t room = last.block->capacity - last.n_rows;
    const std::int64_t take = std::min(room, n - static_cast<std::int64_t>(slots_.size()));
    for (std::int64_t i = 0; i < take; ++i)
      slots_.push_back({extents_.size() - 1, last.n_rows + i});
    last.n_rows += take;
  }
  return {};
}

void KvStore::write(Side side, LayerIndex layer, std::int64_t i, const float* row) noexcept {
  assert(i >= 0 && i < n_pending_);
  const auto l = static_cast<std::size_t>(layer.value());
  const PendingSlot slot = slots_[static_cast<std::size_t>(i)];
  const RowBlock::LayerPlanes& planes = extents_[slot.extent].block->layers[l];
  const LayerShape& shape = layout_.layers[l];
  const bool key = side == Side::kKey;
  const int dim = key ? shape.head_dim_k : shape.head_dim_v;
  const ElementType type = key ? layout_.k_type : layout_.v_type;
  const std::size_t stride = key ? planes.k_head_stride : planes.v_head_stride;
  std::byte* to = (key ? planes.k : planes.v) +
                  static_cast<std::size_t>(slot.row_in_block) * row_bytes(type, dim);
  for (int head = 0; head < shape.n_kv_heads; ++head, row += dim, to += stride) {
    convert_row(row, to, type, dim);
  }
}

void KvStore::write_k(LayerIndex layer, std::int64_t i, const float* row) noexcept {
  write(Side::kKey, layer, i, row);
}

void KvStore::write_v(LayerIndex layer, std::int64_t i, const float* row) noexcept {
  write(Side::kValue, layer, i, row);
}

void KvStore::commit() noexcept {
  n_rows_ += n_pending_;
  n_pending_ = 0;
  for (std::size_t i = slots_.empty() ? extents_.size() : slots_.front().extent;
       i < extents_.size(); ++i) {
    const Extent& filled = extents_[i];
    if (filled.n_rows == filled.block->capacity) filled.block->use_large_pages();
  }
  slots_.clear();
}

void KvStore::rollback() noexcept {
  n_pending_ = 0;
  slots_.clear();
  cut_extents(n_rows_);
}

// Forgets everything behind `n_rows`. An emptied last block that no other store holds stays, for
// the next append.
void KvStore::cut_extents(std::int64_t n_rows) noexcept {
  positions_.resize(std::min(positions_.size(), static_cast<std::size_t>(n_rows)));
  while (!extents_.empty()) {
    const Extent& last = extents_.back();
    const bool reusable = last.first_row == n_rows && last.block->writable && last.lease.sole();
    if (last.first_row < n_rows || reusable) break;
    extents_.pop_back();
  }
  if (!extents_.empty()) {
    Extent& last = extents_.back();
    last.n_rows = std::min(last.n_rows, n_rows - last.first_row);
  }
  refresh_segments(extents_.empty() ? 0 : extents_.size() - 1);
}

std::span<const KeyValueSegment> KvStore::segments(LayerIndex layer) const noexcept {
  return segments_[static_cast<std::size_t>(layer.value())];
}

// Segment i of a layer is extent i, as all extents before the last have rows.
void KvStore::refresh_segments(std::size_t first_changed) {
  for (std::size_t layer = 0; layer < segments_.size(); ++layer) {
    std::vector<KeyValueSegment>& segments = segments_[layer];
    segments.resize(std::min(segments.size(), first_changed));
    for (std::size_t i = segments.size(); i < extents_.size(); ++i) {
      const Extent& extent = extents_[i];
      if (extent.n_rows == 0) continue;
      const RowBlock::LayerPlanes& planes = extent.block->layers[layer];
      segments.push_back({extent.first_row, extent.n_rows, planes.k, planes.v, planes.k_head_stride,
                          planes.v_head_stride});
    }
  }
}

KvStore KvStore::clone() const {
  if (n_pending_ != 0) throw std::logic_error("kv store: clone() with a pending append");
  return KvStore(*this);
}

Status KvStore::truncate(std::int64_t n_rows) {
  if (n_pending_ != 0) return store_error("truncate: an append is pending; roll it back first");
  if (n_rows < 0 || n_rows > n_rows_) {
    return store_error("truncate: expected 0 to " + std::to_string(n_rows_) + " rows, got " +
                       std::to_string(n_rows));
  }
  n_rows_ = n_rows;
  cut_extents(n_rows);
  return {};
}

void KvStore::release(std::int64_t begin, std::int64_t end) noexcept {
  end = std::min(end, n_rows_);
  const auto inside = [&](const Extent& extent) {
    return extent.n_rows > 0 && extent.first_row >= begin &&
           extent.first_row + extent.n_rows <= end;
  };
  const auto first = std::find_if(extents_.begin(), extents_.end(), inside);
  if (first == extents_.end()) return;
  const auto first_changed = static_cast<std::size_t>(first - extents_.begin());
  extents_.erase(std::remove_if(first, extents_.end(), inside), extents_.end());
  refresh_segments(first_changed);
}

std::size_t KvStore::row_bytes_used() const noexcept {
  std::int64_t rows = 0;
  for (const Extent& extent : extents_) rows += extent.n_rows;
  return static_cast<std::size_t>(rows) * layout_.bytes_per_token();
}

std::size_t KvStore::reserved_bytes() const noexcept {
  std::size_t total = 0;
  for (const Extent& extent : extents_) {
    if (!extent.block->anonymous) continue;
    for (std::size_t layer = 0; layer < layout_.layers.size(); ++layer) {
      const RowBlock::LayerPlanes& planes = extent.block->layers[layer];
      total += static_cast<std::size_t>(layout_.layers[layer].n_kv_heads) *
               (planes.k_head_stride + planes.v_head_stride);
    }
  }
  return total;
}

}  // namespace volvelle
