// The memory of a sequence: what queries see, what is dropped, what can be taken back, and what
// create, restore and truncate refuse.
#include "volvelle/memory/context_memory.hpp"

#include <gtest/gtest.h>

#include "unit/context_memory_support.hpp"

namespace volvelle {
namespace {

using testing::feed_known;
using testing::holds_known;
using testing::join;
using testing::PositionLists;
using testing::restore;
using testing::saved_groups;
using testing::seen_by_next;
using testing::small_layout;
using testing::some_tokens;

// Storage types of small_layout().
constexpr const char* kTypes = "+kv(k=f16,v=f32)";

MemorySpec spec_of(const std::string& text) { return *parse_memory_spec(text + kTypes); }

ContextMemory memory_of(const std::string& text) {
  return ContextMemory::create(small_layout(), spec_of(text)).value();
}

TEST(ContextMemory, CreateChecksSpecAndTypes) {
  const auto code = [](const std::string& text) {
    return ContextMemory::create(small_layout(), *parse_memory_spec(text)).error().code;
  };
  EXPECT_EQ(code("full"), ErrorCode::kMismatch);  // f16 by default, the layout has f32 values
  EXPECT_EQ(code("full+kv(k=f16,v=f32)+topk(k=4,index=exact)"), ErrorCode::kUnsupported);
  EXPECT_EQ(ContextMemory::create(small_layout(), MemorySpec{}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(ContextMemory, FullSeesEverything) {
  ContextMemory memory = memory_of("full");
  EXPECT_EQ(seen_by_next(memory, 2), (std::vector{join(0, 0, 1), join(0, 0, 2)}));
  feed_known(memory, 100, 7);
  EXPECT_EQ(memory.length(), 100);
  EXPECT_EQ(memory.next_position(), Position(100));
  EXPECT_EQ(memory.tokens()[42], 42);
  EXPECT_EQ(seen_by_next(memory, 1)[0], join(0, 0, 101));
}

TEST(ContextMemory, WindowByHand) {
  ContextMemory memory = memory_of("sink(2)+window(5,block=4)");
  // t = 0, 1, 2: sinks grow first. E(8) = 4 * floor(4/4) = 4, E(7) = 0 -> 2 (the sinks' end).
  const auto seen = seen_by_next(memory, 13);
  EXPECT_EQ(seen[0], join(1, 1, 1));
  EXPECT_EQ(seen[1], join(2, 2, 2));
  EXPECT_EQ(seen[2], join(2, 2, 3));
  EXPECT_EQ(seen[7], join(2, 2, 8));
  EXPECT_EQ(seen[8], join(2, 4, 9));
  EXPECT_EQ(seen[11], join(2, 4, 12));
  EXPECT_EQ(seen[12], join(2, 8, 13));
}

// The visible sets are a function of the position alone, whatever the chunks were.
TEST(ContextMemory, WindowsDoNotDependOnChunking) {
  for (const char* spec : {"sink(4)+window(100)", "sink(4)+window(60,block=1)", "window(64)"}) {
    std::vector<PositionLists> runs;
    for (const std::int64_t chunk : {1, 64, 512}) {
      ContextMemory memory = memory_of(spec);
      PositionLists seen;
      while (memory.length() < 1536) {
        for (auto& set : seen_by_next(memory, chunk)) seen.push_back(std::move(set));
        feed_known(memory, chunk, chunk);
      }
      runs.push_back(std::move(seen));
    }
    EXPECT_EQ(runs[0], runs[1]) << spec;
    EXPECT_EQ(runs[0], runs[2]) << spec;
  }
}

TEST(ContextMemory, ConstantMemoryBehindTheWindow) {
  ContextMemory memory = memory_of("sink(4)+window(256)");
  feed_known(memory, 6000, 32);
  const std::size_t early = memory.groups().front().store().reserved_bytes();
  feed_known(memory, 12000, 32);
  EXPECT_EQ(memory.length(), 18000);
  EXPECT_LE(memory.groups().front().store().reserved_bytes(), early + early / 3);
  EXPECT_LE(memory.groups().front().store().segments(LayerIndex(0)).size(), 3u);
  for (std::int64_t sink = 0; sink < 4; ++sink) {
    EXPECT_TRUE(
        holds_known(memory.groups().front().store(), sink, static_cast<std::uint64_t>(sink)));
  }
}

TEST(ContextMemory, TruncateWithinTheSpareBlock) {
  for (const std::int64_t chunk : {1, 64, 512}) {
    ContextMemory memory = memory_of("sink(4)+window(256)");
    feed_known(memory, 4096, chunk);
    ASSERT_TRUE(memory.truncate(4096 - 64).ok());
    EXPECT_EQ(memory.length(), 4032);
    EXPECT_EQ(memory.tokens().size(), 4032u);
    const std::int64_t begin = window_begin(memory.spec(), 4032);
    EXPECT_EQ(seen_by_next(memory, 1)[0], join(4, begin, 4033));
    for (std::int64_t p = begin; p < 4032; ++p) {
      ASSERT_TRUE(holds_known(memory.groups().front().store(), p, static_cast<std::uint64_t>(p)))
          << p;
    }
  }
}

// What can be taken back is a property of the spec, not of where blocks of memory happen to end.
TEST(ContextMemory, TruncateIntoDroppedRowsIsRefusedAndChangesNothing) {
  ContextMemory memory = memory_of("sink(4)+window(256)");
  feed_known(memory, 4096, 64);
  const auto before = seen_by_next(memory, 3);
  // E(4096) = 3840; one spare block: rows from 3776 on are kept, so E(t) >= 3776 down to t = 4031.
  EXPECT_EQ(window_begin(memory.spec(), 4030), 3712);
  const Status status = memory.truncate(4030);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.error().message.find("dropped"), std::string::npos);
  EXPECT_EQ(memory.length(), 4096);
  EXPECT_EQ(seen_by_next(memory, 3), before);
  EXPECT_TRUE(memory.truncate(4031).ok());
}

TEST(ContextMemory, TruncateIntoTheSinksStartsOver) {
  ContextMemory memory = memory_of("sink(4)+window(8,block=2)");
  feed_known(memory, 3000, 16);
  ASSERT_TRUE(memory.truncate(3).ok());
  EXPECT_EQ(seen_by_next(memory, 2), (std::vector{join(4, 4, 4), join(4, 4, 5)}));
  feed_known(memory, 20, 3);
  ASSERT_TRUE(memory.truncate(22).ok());
  EXPECT_FALSE(memory.truncate(12).ok());
}

TEST(ContextMemory, TruncateChecksItsArgument) {
  ContextMemory memory = memory_of("full");
  feed_known(memory, 10, 10);
  EXPECT_FALSE(memory.truncate(-1).ok());
  EXPECT_FALSE(memory.truncate(11).ok());
  ASSERT_TRUE(memory.begin(some_tokens(2)).ok());
  EXPECT_FALSE(memory.truncate(3).ok());
  EXPECT_FALSE(memory.begin(some_tokens(2)).ok());
  EXPECT_THROW((void)memory.clone(), std::logic_error);
  memory.rollback();
  EXPECT_FALSE(memory.begin({}).ok());
  EXPECT_TRUE(memory.truncate(0).ok());
  EXPECT_EQ(memory.length(), 0);
}

TEST(ContextMemory, RollbackRestoresTheStateBefore) {
  ContextMemory memory = memory_of("sink(4)+window(64)");
  feed_known(memory, 500, 50);
  const auto before = seen_by_next(memory, 2);
  ASSERT_TRUE(memory.begin(some_tokens(300)).ok());
  memory.rollback();
  EXPECT_EQ(memory.length(), 500);
  EXPECT_TRUE(memory.visible(LayerIndex(0)).empty());
  EXPECT_EQ(seen_by_next(memory, 2), before);
}

TEST(ContextMemory, WriteIntoABlock) {
  ContextMemory memory = memory_of("full");
  const auto block = *allocate_row_block(small_layout(), 32);
  block->anonymous = false;
  ASSERT_TRUE(memory.write_into(0, block).ok());
  feed_known(memory, 32, 5);
  EXPECT_EQ(memory.groups().front().store().segments(LayerIndex(0))[0].k, block->layers[0].k);
  EXPECT_EQ(memory.groups().front().store().reserved_bytes(), 0u);
  EXPECT_FALSE(memory.write_into(0, block).ok());
}

TEST(ContextMemory, RestoredWindowSeesTheSamePositions) {
  ContextMemory memory = memory_of("sink(4)+window(100,block=8)");
  feed_known(memory, 2000, 64);
  const std::int64_t begin = window_begin(memory.spec(), 2000) - 8;
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected = {{0, 4}, {begin, 2000}};
  EXPECT_EQ(memory.groups().front().rows_to_keep(), expected);

  Result<ContextMemory> restored = restore(memory, saved_groups(memory));
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_EQ(restored->length(), 2000);
  EXPECT_LT(restored->row_bytes_used(), 200 * small_layout().bytes_per_token());
  EXPECT_EQ(seen_by_next(*restored, 300), seen_by_next(memory, 300));
  feed_known(*restored, 50, 9);
  feed_known(memory, 50, 9);
  EXPECT_EQ(seen_by_next(*restored, 300), seen_by_next(memory, 300));
  EXPECT_EQ(restored->truncate(2045).ok(), memory.truncate(2045).ok());
  EXPECT_EQ(restored->truncate(1900).ok(), memory.truncate(1900).ok());
  EXPECT_EQ(seen_by_next(*restored, 3), seen_by_next(memory, 3));
}

TEST(ContextMemory, RowsToKeep) {
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  ContextMemory full = memory_of("full");
  EXPECT_EQ(full.groups().front().rows_to_keep(), Ranges{});
  feed_known(full, 9, 4);
  EXPECT_EQ(full.groups().front().rows_to_keep(), (Ranges{{0, 9}}));
  ContextMemory young = memory_of("sink(4)+window(64)");
  feed_known(young, 30, 8);
  EXPECT_EQ(young.groups().front().rows_to_keep(), (Ranges{{0, 30}}));  // nothing dropped yet
  ContextMemory no_sink = memory_of("window(10,block=1)");
  feed_known(no_sink, 40, 8);
  EXPECT_EQ(no_sink.groups().front().rows_to_keep(),
            (Ranges{{30, 40}}));  // E(40) = 31, one spare row
}

TEST(ContextMemory, RestoreRefusesMissingRows) {
  const auto code = [](const std::string& spec, std::int64_t n_tokens, std::vector<Position> rows) {
    const auto block = *allocate_row_block(small_layout(), 64);
    const SavedRows saved{block, rows};
    const auto memory = ContextMemory::restore(small_layout(), spec_of(spec), some_tokens(n_tokens),
                                               std::span(&saved, 1));
    EXPECT_FALSE(memory.ok());
    return memory.error().code;
  };
  const auto positions = [](std::initializer_list<std::int64_t> values) {
    std::vector<Position> out;
    for (const std::int64_t value : values) out.emplace_back(value);
    return out;
  };
  EXPECT_EQ(code("full", 3, positions({0, 1})), ErrorCode::kCorrupt);
  EXPECT_EQ(code("full", 3, positions({0, 2})), ErrorCode::kCorrupt);
  EXPECT_EQ(code("full", 2, positions({0, 1, 2})), ErrorCode::kCorrupt);
  EXPECT_EQ(code("full", 2, positions({1, 0})), ErrorCode::kInvalidArgument);
  // sink(2)+window(3,block=1) after 9 tokens: positions 0, 1 and 7, 8.
  EXPECT_EQ(code("sink(2)+window(3,block=1)", 9, positions({0, 7, 8})), ErrorCode::kCorrupt);
  EXPECT_EQ(code("sink(2)+window(3,block=1)", 9, positions({0, 1, 8})), ErrorCode::kCorrupt);
  EXPECT_EQ(code("sink(2)+window(3,block=1)", 9, positions({0, 1, 7})), ErrorCode::kCorrupt);
  const std::vector<Position> rows = positions({0, 1, 7, 8});
  const SavedRows saved[] = {{*allocate_row_block(small_layout(), 64), rows},
                             {*allocate_row_block(small_layout(), 64), rows}};
  const MemorySpec spec = spec_of("sink(2)+window(3,block=1)");
  EXPECT_TRUE(
      ContextMemory::restore(small_layout(), spec, some_tokens(9), std::span(saved, 1)).ok());
  // As many groups as the spec makes of these layers, not more.
  EXPECT_FALSE(
      ContextMemory::restore(small_layout(), spec, some_tokens(9), std::span(saved, 2)).ok());
}

}  // namespace
}  // namespace volvelle
