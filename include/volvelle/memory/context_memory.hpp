// The memory of one sequence: its tokens, its rows, and which rows each query sees under the spec.
//
// This is the accumulator of the fold. length() is both the number of tokens folded and the next
// position: one variable, so the two can not drift apart. All layers here are causal full
// attention. Thread rule: as KvStore.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volvelle/memory/kv_store.hpp"
#include "volvelle/memory/memory_spec.hpp"

namespace volvelle {

class ContextMemory {
 public:
  /// `spec` must be supported (require_supported) and its storage types must be those of `layout`.
  static Result<ContextMemory> create(StoreLayout layout, const MemorySpec& spec);
  /// A memory restored from saved rows: tokens [n], positions of the rows that are kept, and the
  /// block with them.
  static Result<ContextMemory> restore(StoreLayout layout, const MemorySpec& spec,
                                       std::span<const TokenId> tokens,
                                       std::shared_ptr<RowBlock> rows,
                                       std::span<const Position> positions);

  const MemorySpec& spec() const noexcept { return spec_; }
  const StoreLayout& layout() const noexcept { return store_.layout(); }
  std::int64_t length() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  Position next_position() const noexcept { return Position(length()); }
  std::span<const TokenId> tokens() const noexcept { return tokens_; }
  const KvStore& store() const noexcept { return store_; }

  /// Reserves rows for the tokens that are about to run through the model, at positions length(),
  /// length() + 1, ...
  Status begin(std::span<const TokenId> tokens);
  std::span<const VisibleRows> visible() const noexcept {
    return visible_;
  }  // of the pending tokens
  std::span<const KeyValueSegment> segments(LayerIndex layer) const noexcept {
    return store_.segments(layer);
  }
  void write_k(LayerIndex layer, std::int64_t i, const float* row) noexcept {
    store_.write_k(layer, i, row);
  }
  void write_v(LayerIndex layer, std::int64_t i, const float* row) noexcept {
    store_.write_v(layer, i, row);
  }
  /// The pending tokens are now part of the memory; rows that no later query can see are released.
  void commit();
  /// Back to the state before begin().
  void rollback() noexcept;

  /// Shares all rows; feeding one never changes the other.
  ContextMemory clone() const;
  /// Keeps the first `length` tokens. Fails if rows that the next query needs have been dropped.
  Status truncate(std::int64_t length);
  /// Lets rows be written straight into `block` (a file being written). Only for an empty memory.
  Status write_into(std::shared_ptr<RowBlock> block);

  /// Rows to save: [0, sink) and [E, length) as row indices, E one spare block before the first row
  /// that the next query sees.
  std::vector<std::pair<std::int64_t, std::int64_t>> rows_to_keep() const;

 private:
  ContextMemory(StoreLayout layout, MemorySpec spec);
  ContextMemory(KvStore store, const ContextMemory& other);  // clone()
  VisibleRows visible_rows(std::int64_t t) const noexcept;
  std::int64_t first_row_at(std::int64_t position) const noexcept;
  std::int64_t spare_begin() const noexcept;
  Status check_restored() const;

  MemorySpec spec_;
  KvStore store_;
  std::vector<TokenId> tokens_;
  std::vector<TokenId> pending_;
  std::vector<VisibleRows> visible_;
  std::int64_t kept_from_ = 0;  // every position from here on, and every sink, still has its row
};

}  // namespace volvelle
