// Memories whose layers have windows of their own: how layers are grouped, what each group sees and
// keeps, and that every operation applies to all groups or to none.
#include <gtest/gtest.h>

#include "law/memory_model.hpp"
#include "unit/context_memory_support.hpp"

namespace volvelle {
namespace {

using testing::expect_known_rows;
using testing::feed_known;
using testing::MemoryModel;
using testing::restore;
using testing::saved_groups;
using testing::SavedGroup;
using testing::seen_by_next;
using testing::some_tokens;

/// Layers with windows of 0, 8, 0, 100 and 8 tokens, and one that stores nothing.
StoreLayout layered() {
  StoreLayout layout;
  layout.layers = {{1, 3, 2, 0}, {2, 2, 5, 8}, {1, 4, 4, 0}, {}, {1, 2, 3, 100}, {3, 1, 2, 8}};
  layout.k_type = ElementType::kF16;
  layout.v_type = ElementType::kF32;
  return layout;
}
constexpr int kGlobal = 0, kNarrow = 1, kNothing = 3, kWide = 4;  // layers

MemorySpec spec_of(const std::string& text) {
  return *parse_memory_spec(text + "+kv(k=f16,v=f32)");
}
ContextMemory memory_of(const std::string& text) {
  return ContextMemory::create(layered(), spec_of(text)).value();
}
MemoryModel model_of(const std::string& text, std::int64_t n) {
  MemoryModel model(layered(), spec_of(text));
  model.append(some_tokens(n));
  return model;
}

constexpr const char* kSpecs[] = {"full",      "full+swa(full)",    "sink(4)+window(50)",
                                  "window(8)", "window(5,block=3)", "sink(2)+window(400)"};

TEST(LayerGrouping, OneGroupForEachRule) {
  const LayerGrouping full = group_layers(layered(), spec_of("full"));
  EXPECT_EQ(full.group_of_layer, (std::vector{0, 1, 0, -1, 2, 1}));
  EXPECT_EQ(full.rules,
            (std::vector<WindowRule>{
                {}, {0, 8, 1, kLayerWindowSpare, true}, {0, 100, 1, kLayerWindowSpare, true}}));
  // Under a window of 50 the layers with 100 see 50, without its sinks: a rule of their own.
  const LayerGrouping window = group_layers(layered(), spec_of("sink(4)+window(50)"));
  EXPECT_EQ(window.group_of_layer, (std::vector{0, 1, 0, -1, 2, 1}));
  EXPECT_EQ(window.rules[2].tokens, 50);
  // Under a window of 8 or less the two kinds of own windows fall together.
  EXPECT_EQ(group_layers(layered(), spec_of("window(8)")).group_of_layer,
            (std::vector{0, 1, 0, -1, 1, 1}));
  EXPECT_EQ(group_layers(layered(), spec_of("window(5)")).rules.size(), 2u);
}

TEST(LayerGrouping, TheFirstGroupHasNoWindowOfItsOwnOrTheNarrowestOne) {
  StoreLayout layout = layered();
  layout.layers = {{1, 2, 2, 100}, {1, 2, 2, 8}, {}, {1, 2, 2, 100}};
  EXPECT_EQ(group_layers(layout, spec_of("full")).group_of_layer, (std::vector{1, 0, -1, 1}));
  layout.layers.push_back({1, 2, 2, 0});
  EXPECT_EQ(group_layers(layout, spec_of("full")).group_of_layer, (std::vector{2, 1, -1, 2, 0}));
}

TEST(LayerGrouping, LayoutOfAGroupHasOnlyItsLayers) {
  const LayerGrouping grouping = group_layers(layered(), spec_of("full"));
  std::size_t bytes = 0;
  for (int group = 0; group < 3; ++group) {
    const StoreLayout layout = grouping.layout_of(layered(), group);
    ASSERT_EQ(layout.layers.size(), layered().layers.size());
    for (std::size_t i = 0; i < layout.layers.size(); ++i) {
      const bool inside = grouping.group_of_layer[i] == group;
      EXPECT_EQ(layout.layers[i], inside ? layered().layers[i] : LayerShape{});
    }
    bytes += layout.bytes_per_token();
  }
  EXPECT_EQ(bytes, layered().bytes_per_token());
}

TEST(ContextMemoryGroups, ALayoutThatStoresNothingIsRefused) {
  StoreLayout nothing = layered();
  nothing.layers = {{}, {}};
  EXPECT_EQ(ContextMemory::create(nothing, spec_of("full")).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(ContextMemoryGroups, EveryLayerSeesWhatItsOwnRuleSays) {
  for (const char* text : kSpecs) {
    ContextMemory memory = memory_of(text);
    for (const std::int64_t n : {0, 5, 8, 30, 57, 100, 400}) {
      feed_known(memory, n - memory.length(), 16);
      const MemoryModel model = model_of(text, n);
      for (int layer = 0; layer < 6; ++layer) {
        if (layer == kNothing) continue;
        const auto seen = seen_by_next(memory, 20, layer);
        for (std::int64_t i = 0; i < 20; ++i) {
          ASSERT_EQ(seen[static_cast<std::size_t>(i)],
                    model.seen(static_cast<std::size_t>(layer), n + i))
              << text << ", layer " << layer << ", query " << n + i;
        }
      }
      expect_known_rows(memory);
    }
  }
}

// What a file must reserve is known before the tokens are read, whatever the chunks will be.
TEST(ContextMemoryGroups, PositionsToKeepAreThoseKnownBefore) {
  for (const char* text : kSpecs) {
    for (const std::int64_t n : {0, 1, 7, 8, 9, 63, 64, 65, 263, 264, 265, 356, 357, 700}) {
      for (const std::int64_t chunk : {1, 64, 512}) {
        ContextMemory memory = memory_of(text);
        feed_known(memory, n, chunk);
        ASSERT_EQ(memory.positions_to_keep(), positions_after(memory.grouping(), n))
            << text << " after " << n << " by " << chunk;
      }
      const MemoryModel model = model_of(text, n);
      const LayerGrouping grouping = group_layers(layered(), spec_of(text));
      const RowPositions known = positions_after(grouping, n);
      for (std::size_t layer = 0; layer < 6; ++layer) {
        if (grouping.group_of_layer[layer] < 0) continue;
        ASSERT_EQ(known[static_cast<std::size_t>(grouping.group_of_layer[layer])],
                  model.kept(layer));
      }
    }
  }
}

TEST(ContextMemoryGroups, OnlyWhatALayerCanSeeStaysInMemory) {
  ContextMemory memory = memory_of("full");
  feed_known(memory, 6000, 50);
  std::vector<std::size_t> used;
  for (const RowGroup& group : memory.groups()) used.push_back(group.store().reserved_bytes());
  feed_known(memory, 6000, 50);
  EXPECT_GE(memory.groups()[0].store().reserved_bytes(), 2 * used[0] - used[0] / 4);
  EXPECT_LE(memory.groups()[1].store().reserved_bytes(), used[1] + used[1] / 2);
  EXPECT_LE(memory.groups()[2].store().reserved_bytes(), used[2] + used[2] / 2);
  EXPECT_LE(memory.groups()[1].store().segments(LayerIndex(kNarrow)).size(), 3u);
}

TEST(ContextMemoryGroups, TruncateIsAllowedExactlyWhileEveryLayerCanGoOn) {
  for (const char* text : kSpecs) {
    for (const std::int64_t n : {30, 300, 700}) {
      ContextMemory memory = memory_of(text);
      feed_known(memory, n, 64);
      const MemoryModel model = model_of(text, n);
      int n_refused = 0;
      for (std::int64_t length = 0; length <= n; ++length) {
        ContextMemory branch = memory.clone();
        const Status status = branch.truncate(length);
        ASSERT_EQ(status.ok(), model.can_truncate(length)) << text << ": " << n << " to " << length;
        ASSERT_EQ(branch.length(), status.ok() ? length : n);
        n_refused += status.ok() ? 0 : 1;
        if (!status.ok() || length % 50 != 0) continue;
        feed_known(branch, 30, 7);
        expect_known_rows(branch);
      }
      // So the borders are real: 700 tokens leave every window but that of layers that keep all.
      if (n == 700) {
        EXPECT_EQ(n_refused > 0, std::string(text) != "full+swa(full)") << text;
      }
    }
  }
}

TEST(ContextMemoryGroups, ARefusedTruncateChangesNoGroup) {
  ContextMemory memory = memory_of("full");
  feed_known(memory, 700, 64);
  const auto global = seen_by_next(memory, 3, kGlobal);
  const auto wide = seen_by_next(memory, 3, kWide);
  ASSERT_FALSE(memory.truncate(400).ok());  // all of group 0 is there, group 1 can not go on
  EXPECT_EQ(memory.length(), 700);
  for (const RowGroup& group : memory.groups()) EXPECT_EQ(group.length(), 700);
  EXPECT_EQ(seen_by_next(memory, 3, kGlobal), global);
  EXPECT_EQ(seen_by_next(memory, 3, kWide), wide);
  expect_known_rows(memory);
}

// The second group's begin() fails because its rows are still pending: a group that began before it
// must be rolled back.
TEST(ContextMemoryGroups, ABeginThatFailsInOneGroupLeavesAllAsTheyWere) {
  ContextMemory memory = memory_of("full");
  feed_known(memory, 20, 5);
  EXPECT_FALSE(memory.begin({}).ok());
  ASSERT_TRUE(memory.begin(some_tokens(3)).ok());
  EXPECT_FALSE(memory.begin(some_tokens(2)).ok());
  EXPECT_FALSE(memory.truncate(3).ok());
  memory.rollback();
  for (const RowGroup& group : memory.groups()) EXPECT_TRUE(group.visible().empty());
  feed_known(memory, 20, 5);
  expect_known_rows(memory);
}

TEST(ContextMemoryGroups, WriteIntoOneGroupLeavesTheOthersInRam) {
  ContextMemory memory = memory_of("full");
  const auto block = *allocate_row_block(memory.grouping().layout_of(layered(), 0), 40);
  block->anonymous = false;
  EXPECT_FALSE(memory.write_into(1, block).ok());  // it has no rows of those layers
  ASSERT_TRUE(memory.write_into(0, block).ok());
  EXPECT_FALSE(memory.write_into(0, block).ok());  // twice
  EXPECT_THROW((void)memory.write_into(3, block), std::logic_error);
  feed_known(memory, 40, 7);
  EXPECT_EQ(memory.groups()[0].store().reserved_bytes(), 0u);
  EXPECT_GT(memory.groups()[1].store().reserved_bytes(), 0u);
  EXPECT_EQ(memory.segments(LayerIndex(kGlobal))[0].k, block->layers[kGlobal].k);
  expect_known_rows(memory);
  EXPECT_FALSE(memory.write_into(1, block).ok());  // no longer empty
}

TEST(ContextMemoryGroups, RestoredMemoriesGoOnAsIfNothingHadBeenSaved) {
  for (const char* text : kSpecs) {
    for (const std::int64_t n : {5, 90, 700}) {
      ContextMemory memory = memory_of(text);
      feed_known(memory, n, 64);
      Result<ContextMemory> restored = restore(memory, saved_groups(memory));
      ASSERT_TRUE(restored.ok()) << text << " " << n << ": " << restored.error().message;
      expect_known_rows(*restored);
      for (ContextMemory* m : {&memory, &*restored}) feed_known(*m, 333, 20);
      expect_known_rows(*restored);
      EXPECT_EQ(restored->positions_to_keep(), memory.positions_to_keep());
      for (std::int64_t length = 0; length < memory.length(); length += 7) {
        ContextMemory a = memory.clone();
        ContextMemory b = restored->clone();
        ASSERT_EQ(a.truncate(length).ok(), b.truncate(length).ok()) << text << " to " << length;
      }
    }
  }
}

TEST(ContextMemoryGroups, RestoreRefusesRowsThatAreMissingInOneGroup) {
  ContextMemory memory = memory_of("full");
  feed_known(memory, 400, 64);
  for (std::size_t damaged = 0; damaged < 3; ++damaged) {
    std::vector<SavedGroup> groups = saved_groups(memory);
    std::vector<Position> kept = groups[damaged].positions;
    kept.erase(kept.end() - 3);  // all groups see the last 8
    groups[damaged] =
        SavedGroup(memory.grouping().layout_of(layered(), static_cast<int>(damaged)), kept);
    const Result<ContextMemory> restored = restore(memory, groups);
    ASSERT_FALSE(restored.ok()) << damaged;
    EXPECT_EQ(restored.error().code, ErrorCode::kCorrupt);
  }
}

TEST(ContextMemoryGroups, RestoreRefusesGroupsOfOtherLayers) {
  ContextMemory memory = memory_of("full");
  feed_known(memory, 6, 6);  // few enough that all groups have the same positions
  std::vector<SavedGroup> groups = saved_groups(memory);
  EXPECT_TRUE(restore(memory, groups).ok());
  std::swap(groups[1], groups[2]);
  EXPECT_FALSE(restore(memory, groups).ok());
  std::swap(groups[1], groups[2]);
  groups.pop_back();
  EXPECT_EQ(restore(memory, groups).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace volvelle
