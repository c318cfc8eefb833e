// The rows of all layers that follow one window rule: where they are, which of them each pending
// token sees, and which are no longer needed.
//
// Every position is turned into a row through the store's ascending list of positions (binary
// search). Rows before keep_from() are dropped at commit(). A restored row has the number that it
// had before it was saved: attention's tiles begin at multiples of rows, so results then have the
// same bits as if nothing had been saved. Invariant: every position from kept_from() on, and every
// sink, still has its row. Cost: begin() O(n log rows); no row is ever moved. Thread rule: as
// KvStore.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "volvelle/memory/kv_store.hpp"
#include "volvelle/memory/window_rule.hpp"

namespace volvelle {

/// Rows of one group as a file holds them.
struct SavedRows {
  std::shared_ptr<RowBlock> rows;
  std::span<const Position> positions;  // ascending
};

class RowGroup {
 public:
  /// Rows of a block of a group that drops rows: small, so that memory follows the window closely.
  static constexpr std::int64_t kWindowBlockRows = 256;

  /// `layout` has the sizes of the layers of this group, and none for the others.
  RowGroup(StoreLayout layout, const WindowRule& rule);

  const WindowRule& rule() const noexcept { return rule_; }
  const KvStore& store() const noexcept { return store_; }
  KvStore& store() noexcept { return store_; }
  std::span<const VisibleRows> visible() const noexcept { return visible_; }
  /// Tokens committed so far; the next position.
  std::int64_t length() const noexcept { return length_; }

  /// Takes saved rows of a memory of `length` tokens. Fails if rows that the next query sees are
  /// missing.
  Status restore(SavedRows saved, std::int64_t length);
  /// Reserves rows for `n` tokens at positions length(), length() + 1, ...
  Status begin(std::int64_t n);
  void commit();
  void rollback() noexcept;

  RowGroup clone() const;
  /// Whether truncate() to `length` (at most length()) leaves all rows that the next query sees.
  Status check_truncate(std::int64_t length) const;
  Status truncate(std::int64_t length);

  /// Rows worth saving, as row indices: the sinks, and from keep_from() on.
  std::vector<std::pair<std::int64_t, std::int64_t>> rows_to_keep() const;

 private:
  RowGroup(KvStore store, const RowGroup& other);  // clone()
  VisibleRows visible_rows(std::int64_t t) const noexcept;
  std::int64_t first_row_at(std::int64_t position) const noexcept;
  Status check_restored(std::span<const Position> positions, std::int64_t length) const;

  WindowRule rule_;
  KvStore store_;
  std::vector<VisibleRows> visible_;
  std::int64_t length_ = 0;
  std::int64_t kept_from_ = 0;
};

}  // namespace volvelle
