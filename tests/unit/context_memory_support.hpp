// Feeding context memories with known rows, and reading what their next queries see as positions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "law/store_reader.hpp"
#include "volvelle/memory/context_memory.hpp"

namespace volvelle::testing {

inline std::vector<TokenId> some_tokens(std::int64_t n, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<Position> positions_in(std::int64_t begin, std::int64_t end) {
  std::vector<Position> out;
  for (std::int64_t p = begin; p < end; ++p) out.emplace_back(p);
  return out;
}

/// Feeds n tokens in chunks; the token at position p has the id p and the rows known_row(p).
inline void feed_known(ContextMemory& memory, std::int64_t n, std::int64_t chunk) {
  while (n > 0) {
    const std::int64_t size = std::min(n, chunk);
    const std::int64_t begin = memory.length();
    ASSERT_TRUE(memory.begin(some_tokens(size, static_cast<TokenId>(begin))).ok());
    for (std::int64_t i = 0; i < size; ++i)
      write_known(memory, i, static_cast<std::uint64_t>(begin + i));
    memory.commit();
    n -= size;
  }
}

using PositionLists = std::vector<std::vector<std::int64_t>>;

/// Positions that each of the next `n` tokens would see in a layer.
inline PositionLists seen_by_next(ContextMemory& memory, std::int64_t n, int layer = 0) {
  std::vector<std::int64_t> positions;
  for (const Position p : memory.group_of(LayerIndex(layer)).store().positions())
    positions.push_back(p.value());
  for (std::int64_t i = 0; i < n; ++i) positions.push_back(memory.length() + i);
  EXPECT_TRUE(memory.begin(some_tokens(n)).ok());
  PositionLists out;
  for (const VisibleRows& rows : memory.visible(LayerIndex(layer))) {
    out.emplace_back(positions.begin(), positions.begin() + rows.sink_end);
    out.back().insert(out.back().end(), positions.begin() + rows.begin,
                      positions.begin() + rows.end);
  }
  memory.rollback();
  return out;
}

/// [0, sink_end) and [begin, end).
inline std::vector<std::int64_t> join(std::int64_t sink_end, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> out;
  for (std::int64_t p = 0; p < sink_end; ++p) out.push_back(p);
  for (std::int64_t p = begin; p < end; ++p) out.push_back(p);
  return out;
}

/// The rows that a group wants to keep, as a file would hold them: in one block, with the known
/// contents of their positions.
struct SavedGroup {
  std::shared_ptr<RowBlock> block;
  std::vector<Position> positions;

  SavedGroup(const StoreLayout& layout, std::vector<Position> kept) : positions(std::move(kept)) {
    block = *allocate_row_block(layout, std::max<std::int64_t>(1, std::ssize(positions)));
    KvStore writer(layout);
    EXPECT_TRUE(writer.adopt(block, {}).ok());
    if (!positions.empty()) {
      EXPECT_TRUE(writer.begin_append(positions).ok());
      for (std::size_t i = 0; i < positions.size(); ++i)
        write_known(writer, static_cast<std::int64_t>(i),
                    static_cast<std::uint64_t>(positions[i].value()));
      writer.commit();
    }
    block->writable = positions.empty();
  }
  SavedRows rows() const { return {block, positions}; }
};

/// What files would hold of the memory.
inline std::vector<SavedGroup> saved_groups(const ContextMemory& memory) {
  std::vector<SavedGroup> groups;
  const RowPositions kept = memory.positions_to_keep();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    groups.emplace_back(memory.grouping().layout_of(memory.layout(), static_cast<int>(i)), kept[i]);
  }
  return groups;
}

inline Result<ContextMemory> restore(const ContextMemory& like,
                                     const std::vector<SavedGroup>& groups) {
  std::vector<SavedRows> rows;
  for (const SavedGroup& group : groups) rows.push_back(group.rows());
  return ContextMemory::restore(like.layout(), like.spec(), like.tokens(), rows);
}

/// Rows of all layers that the next query sees are the known rows of their positions.
inline void expect_known_rows(const ContextMemory& original) {
  ContextMemory memory = original.clone();
  for (int layer = 0; layer < static_cast<int>(memory.layout().layers.size()); ++layer) {
    if (memory.layout().layers[static_cast<std::size_t>(layer)].n_kv_heads == 0) continue;
    const KvStore& store = memory.group_of(LayerIndex(layer)).store();
    const PositionLists seen = seen_by_next(memory, 1, layer);
    for (const std::int64_t p : seen[0]) {
      if (p == memory.length()) continue;  // pending, never written
      const auto positions = store.positions();
      const auto row = std::lower_bound(positions.begin(), positions.end(), Position(p));
      ASSERT_TRUE(holds_known(store, row - positions.begin(), static_cast<std::uint64_t>(p))) << p;
    }
  }
}

}  // namespace volvelle::testing
