// Key and value rows of all layers, append-only, shared by reference.
//
// Rows live in blocks (anonymous memory, or a mapped file); a block holds, for every layer, K and V
// as [n_kv_heads, capacity, head_dim]. A store is a list of (block, number of rows used), so
// clone() copies no row, truncate() frees nothing that another store still sees, and a saved memory
// is a read-only block in front. A store extends its last block in place only while it is that
// block's sole owner; otherwise it starts a new one.
//
// Cost: append is one conversion per element; clone and truncate are O(number of blocks).
// Thread rule: thread-compatible; during one ubatch write_*() may be called from many threads for
// different tokens or layers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "volvelle/attention/attend.hpp"
#include "volvelle/base/element_type.hpp"
#include "volvelle/base/ids.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

/// What one layer stores. A layer without KV heads stores nothing: it reads the rows of another
/// layer, or has no attention.
struct LayerShape {
  int n_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  std::int64_t window = 0;  // the model's own: the query at t sees (t - window, t]; 0: everything
  bool operator==(const LayerShape&) const = default;
};

struct StoreLayout {
  std::vector<LayerShape> layers;
  ElementType k_type = ElementType::kF16;
  ElementType v_type = ElementType::kF16;
  bool operator==(const StoreLayout&) const = default;
  /// Bytes of one token's rows over all layers: sum of G (Dk bytes_k + Dv bytes_v).
  std::size_t bytes_per_token() const noexcept;
};

/// Memory for `capacity` rows of every layer. `owner` keeps it alive.
struct RowBlock {
  struct LayerPlanes {
    std::byte* k = nullptr;
    std::byte* v = nullptr;
    std::size_t k_head_stride = 0;  // bytes between KV heads
    std::size_t v_head_stride = 0;
  };
  std::vector<LayerPlanes> layers;
  std::int64_t capacity = 0;
  bool writable = true;
  bool anonymous = true;  // false: pages belong to a file
  std::shared_ptr<void> owner;
  std::span<std::byte> memory;  // of an anonymous block, all planes; begins at a large page

  /// Asks the system to put a block that is written in full on large pages, which measured 1.2
  /// times the read bandwidth of small ones. Nothing else changes, and nothing at all where the
  /// system offers none. Cost: one copy of the block.
  void use_large_pages() const noexcept;
};

/// Anonymous, lazily resident memory for `capacity` rows.
Result<std::shared_ptr<RowBlock>> allocate_row_block(const StoreLayout& layout,
                                                     std::int64_t capacity);

class KvStore {
 public:
  static constexpr std::int64_t kBlockRows = 1024;

  /// `block_rows`: rows of each block that the store allocates.
  explicit KvStore(StoreLayout layout, std::int64_t block_rows = kBlockRows);
  KvStore(KvStore&&) noexcept = default;
  KvStore& operator=(KvStore&&) noexcept = default;

  const StoreLayout& layout() const noexcept { return layout_; }
  /// Rows committed so far. Row indices are never re-used for other rows, except after truncate().
  std::int64_t n_rows() const noexcept { return n_rows_; }
  std::span<const Position> positions() const noexcept {  // [n_rows], ascending
    return std::span(positions_).first(static_cast<std::size_t>(n_rows_));
  }

  /// Puts the finished rows of a saved memory into an empty store: one for each of `positions`,
  /// ascending, as row number `position`, which it had before it was saved; the rows between them
  /// count as forgotten, and so do those up to `n_rows`. Without positions: an empty writable block
  /// that the next appends will fill (a file being written).
  Status adopt(std::shared_ptr<RowBlock> block, std::span<const Position> positions,
               std::int64_t n_rows = 0);

  /// Reserves rows for tokens at `positions` (ascending, behind the last row). They become part of
  /// the store at commit().
  Status begin_append(std::span<const Position> positions);
  /// Converts and writes token `i` of the pending append; `row` is f32 [n_kv_heads * head_dim].
  void write_k(LayerIndex layer, std::int64_t i, const float* row) noexcept;
  void write_v(LayerIndex layer, std::int64_t i, const float* row) noexcept;
  void commit() noexcept;
  void rollback() noexcept;

  /// Segments of one layer, pending rows included. Valid until the store changes.
  std::span<const KeyValueSegment> segments(LayerIndex layer) const noexcept;

  KvStore clone() const;                 // shares every block; must not have a pending append
  Status truncate(std::int64_t n_rows);  // keeps rows [0, n_rows)
  /// Forgets rows [begin, end): frees the blocks that lie wholly inside. Such rows must not be
  /// visible to any later query.
  void release(std::int64_t begin, std::int64_t end) noexcept;

  /// Bytes of the rows in use, and of anonymous memory reserved by blocks (pages never touched are
  /// not resident).
  std::size_t row_bytes_used() const noexcept;
  std::size_t reserved_bytes() const noexcept;

 private:
  // Counts the stores that hold a block. Not shared_ptr::use_count(): a file being written holds
  // its block too, and the count must order the last reads of a store that went away before the
  // writes of the one that stays.
  class Lease {
   public:
    Lease() : count_(std::make_shared<std::atomic<int>>(1)) {}
    Lease(const Lease& other) : count_(other.count_) {
      count_->fetch_add(1, std::memory_order_relaxed);
    }
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease other) noexcept { return count_.swap(other.count_), *this; }
    ~Lease() {
      if (count_ != nullptr) count_->fetch_sub(1, std::memory_order_release);
    }
    bool sole() const noexcept { return count_->load(std::memory_order_acquire) == 1; }

   private:
    std::shared_ptr<std::atomic<int>> count_;
  };
  struct Extent {  // the first n_rows rows of a block
    std::shared_ptr<RowBlock> block;
    std::int64_t first_row = 0;  // of the store
    std::int64_t n_rows = 0;     // used by this store, pending included
    Lease lease;
  };
  struct PendingSlot {  // where a pending token's rows go
    std::size_t extent = 0;
    std::int64_t row_in_block = 0;
  };
  enum class Side { kKey, kValue };

  KvStore(const KvStore&) = default;  // clone()
  Status check_adopt(const RowBlock* block, std::span<const Position> positions) const;
  std::shared_ptr<RowBlock> part_of(const std::shared_ptr<RowBlock>& block, std::int64_t first_row,
                                    std::int64_t n_rows) const;
  Status check_append(std::span<const Position> positions) const;
  Status reserve_slots(std::int64_t n);
  bool can_extend_last() const noexcept;
  Status check_not_leaving_file(std::int64_t next_row) const;
  void cut_extents(std::int64_t n_rows) noexcept;
  void refresh_segments(std::size_t first_changed);
  void write(Side side, LayerIndex layer, std::int64_t i, const float* row) noexcept;

  StoreLayout layout_;
  std::int64_t block_rows_;
  std::int64_t n_rows_ = 0;
  std::int64_t n_pending_ = 0;
  std::vector<Position> positions_;  // pending ones included
  std::vector<Extent> extents_;      // ascending; only the last may have no rows
  std::vector<PendingSlot> slots_;
  std::vector<std::vector<KeyValueSegment>> segments_;  // [layer][extent with rows]
};

}  // namespace volvelle
