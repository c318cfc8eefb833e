// The memory of one sequence: its tokens, its rows, and which rows each query sees under the spec.
//
// This is the accumulator of the fold. length() is both the number of tokens folded and the next
// position: one variable, so the two can not drift apart. Layers that follow the same window rule
// (window_rule.hpp) form a group; a group has its own rows, so a layer with a sliding window keeps
// only what it can see. Thread rule: as KvStore.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "volvelle/memory/memory_index.hpp"
#include "volvelle/memory/memory_spec.hpp"
#include "volvelle/memory/row_group.hpp"

namespace volvelle {

/// Which layers share a group. Deterministic in the layout and the spec: the group of layers
/// without a window of their own comes first, then those of the model's windows, narrow ones first.
struct LayerGrouping {
  std::vector<WindowRule> rules;    // [n_groups]
  std::vector<int> group_of_layer;  // [n_layers]; -1 for layers that store nothing
  bool operator==(const LayerGrouping&) const = default;
  /// The layout of one group: other layers have no KV heads.
  StoreLayout layout_of(const StoreLayout& all, int group) const;
};
LayerGrouping group_layers(const StoreLayout& layout, const MemorySpec& spec);

/// Positions of the rows of each group, ascending.
using RowPositions = std::vector<std::vector<Position>>;
/// Positions whose rows each group keeps after reading `n_tokens` tokens, known before they are
/// read.
RowPositions positions_after(const LayerGrouping& grouping, std::int64_t n_tokens);

class ContextMemory {
 public:
  /// `spec` must be supported (require_supported) and its storage types must be those of `layout`.
  static Result<ContextMemory> create(StoreLayout layout, const MemorySpec& spec);
  /// A memory restored from saved rows: tokens [n], and for every group of group_layers() its rows.
  static Result<ContextMemory> restore(StoreLayout layout, const MemorySpec& spec,
                                       std::span<const TokenId> tokens,
                                       std::span<const SavedRows> groups);

  const MemorySpec& spec() const noexcept { return spec_; }
  /// All layers.
  const StoreLayout& layout() const noexcept { return layout_; }
  std::int64_t length() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  Position next_position() const noexcept { return Position(length()); }
  std::span<const TokenId> tokens() const noexcept { return tokens_; }
  const LayerGrouping& grouping() const noexcept { return grouping_; }
  std::span<const RowGroup> groups() const noexcept { return groups_; }
  /// The group that holds a layer's rows.
  const RowGroup& group_of(LayerIndex layer) const noexcept { return groups_[index_of(layer)]; }

  /// Reserves rows for the tokens that are about to run through the model, at positions length(),
  /// length() + 1, ...
  Status begin(std::span<const TokenId> tokens);
  /// Rows that each pending token sees in a layer.
  std::span<const VisibleRows> visible(LayerIndex layer) const noexcept {
    return group_of(layer).visible();
  }
  std::span<const KeyValueSegment> segments(LayerIndex layer) const noexcept {
    return group_of(layer).store().segments(layer);
  }
  void write_k(LayerIndex layer, std::int64_t i, const float* row) noexcept {
    groups_[index_of(layer)].store().write_k(layer, i, row);
  }
  void write_v(LayerIndex layer, std::int64_t i, const float* row) noexcept {
    groups_[index_of(layer)].store().write_v(layer, i, row);
  }
  /// The pending tokens are now part of the memory; rows that no later query can see are released.
  void commit();
  /// Back to the state before begin().
  void rollback() noexcept;

  /// The index of a spec with topk, or nothing.
  const MemoryIndex* index() const noexcept { return index_ ? &*index_ : nullptr; }
  /// Keeps queries of the pending tokens for the index; see MemoryIndex::observe().
  void observe(LayerIndex layer, const AttendTask& task) noexcept {
    if (index_) index_->observe(layer, task, length());
  }
  /// Makes the index if it has one that should be made by now; nothing may be pending.
  Status prepare_index(int n_threads, const RopeConfig& rope = {},
                       IndexDiagnostics* diagnostics = nullptr);
  /// Tokens that it may hold: as many as adopted codes know, or any number.
  std::int64_t position_limit() const noexcept {
    const bool limited = index_ && index_->position_limit() > 0;
    return limited ? index_->position_limit() : std::numeric_limits<std::int64_t>::max();
  }
  /// Lets an empty memory use the codes of another one's index, made for the same model by a spec
  /// that makes the same codes; see MemoryIndex::adopt_codes().
  Status adopt_codes(const ContextMemory& calibration);
  /// Codes the rows that the pending tokens complete. Before commit(); an error calls for
  /// rollback().
  Status extend_index();
  /// Takes over a saved index.
  void restore_index(MemoryIndex index) { index_ = std::move(index); }

  /// Shares all rows; feeding one never changes the other.
  ContextMemory clone() const;
  /// Keeps the first `length` tokens. Fails, and changes nothing, if rows that the next query needs
  /// have been dropped.
  Status truncate(std::int64_t length);
  /// Lets rows of a group be written straight into `block` (a file being written). Only for an
  /// empty memory.
  Status write_into(int group, std::shared_ptr<RowBlock> block);

  /// Positions of the rows that are worth saving. After reading tokens that is positions_after().
  RowPositions positions_to_keep() const;
  /// Bytes of rows in use, and of anonymous memory reserved for them.
  std::size_t row_bytes_used() const noexcept;
  std::size_t reserved_bytes() const noexcept;

 private:
  ContextMemory(StoreLayout layout, MemorySpec spec);
  ContextMemory(const ContextMemory& other, std::vector<RowGroup> groups);  // clone()
  std::size_t index_of(LayerIndex layer) const noexcept {
    return static_cast<std::size_t>(
        grouping_.group_of_layer[static_cast<std::size_t>(layer.value())]);
  }

  MemorySpec spec_;
  StoreLayout layout_;
  LayerGrouping grouping_;
  const KvStore& indexed_store() const noexcept;

  std::vector<RowGroup> groups_;
  std::optional<MemoryIndex> index_;
  std::vector<TokenId> tokens_;
  std::vector<TokenId> pending_;
};

}  // namespace volvelle
