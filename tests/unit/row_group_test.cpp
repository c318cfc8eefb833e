// One group of layers: where a position's row is, before and after it was saved and restored; what
// is kept, dropped and can be taken back, at the borders.
#include "volvelle/memory/row_group.hpp"

#include <gtest/gtest.h>

#include "unit/context_memory_support.hpp"

namespace volvelle {
namespace {

using testing::holds_known;
using testing::positions_in;
using testing::SavedGroup;
using testing::small_layout;
using testing::write_known;
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

RowGroup group_of(const WindowRule& rule) { return RowGroup(small_layout(), rule); }

void feed(RowGroup& group, std::int64_t n, std::int64_t chunk) {
  for (std::int64_t done = 0; done < n; done += chunk) {
    const std::int64_t size = std::min(chunk, n - done);
    const std::int64_t begin = group.length();
    ASSERT_TRUE(group.begin(size).ok());
    for (std::int64_t i = 0; i < size; ++i)
      write_known(group.store(), i, static_cast<std::uint64_t>(begin + i));
    group.commit();
  }
}

/// Positions of the rows worth saving.
std::vector<Position> kept(const RowGroup& group) {
  std::vector<Position> out;
  for (const auto& [begin, end] : group.rows_to_keep()) {
    const auto positions = group.store().positions();
    out.insert(out.end(), positions.begin() + begin, positions.begin() + end);
  }
  return out;
}

RowGroup restored(const RowGroup& group) {
  const SavedGroup saved(group.store().layout(), kept(group));
  RowGroup out(group.store().layout(), group.rule());
  EXPECT_TRUE(out.restore(saved.rows(), group.length()).ok());
  return out;
}

bool same(const VisibleRows& a, const VisibleRows& b) {
  return a.sink_end == b.sink_end && a.begin == b.begin && a.end == b.end;
}

constexpr WindowRule kEverything{};
constexpr WindowRule kSinksAndWindow{4, 100, 8, 8, true};
constexpr WindowRule kSliding{0, 64, 1, 256, true};

TEST(RowGroup, SeesWhatTheRuleSays) {
  RowGroup group = group_of(kSinksAndWindow);
  feed(group, 200, 64);
  ASSERT_TRUE(group.begin(3).ok());
  ASSERT_EQ(group.visible().size(), 3u);
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::int64_t t = 200 + i;
    EXPECT_TRUE(
        same(group.visible()[static_cast<std::size_t>(i)], {4, kSinksAndWindow.begin(t), t + 1}));
  }
  group.rollback();
  EXPECT_TRUE(group.visible().empty());
  EXPECT_EQ(group.length(), 200);
}

TEST(RowGroup, KeepsExactlyWhatTheRuleKeeps) {
  for (const WindowRule& rule : {kEverything, kSinksAndWindow, kSliding}) {
    for (const std::int64_t n : {1, 3, 63, 64, 65, 107, 108, 109, 320, 321, 700}) {
      for (const std::int64_t chunk : {1, 50}) {
        RowGroup group = group_of(rule);
        feed(group, n, chunk);
        std::vector<Position> expected = positions_in(0, std::min(rule.sinks, n));
        for (const Position p : positions_in(std::max(rule.sinks, rule.keep_from(n)), n))
          expected.push_back(p);
        ASSERT_EQ(kept(group), expected) << rule.tokens << " after " << n << " by " << chunk;
      }
    }
  }
  EXPECT_EQ(group_of(kSliding).rows_to_keep(), Ranges{});
}

// With a block of one token the window moves by one, so the border can be named: from `n` tokens
// exactly `spare` can be taken back.
TEST(RowGroup, TakesBackExactlyTheSpare) {
  for (const std::int64_t chunk : {1, 7, 512}) {
    RowGroup group = group_of(kSliding);
    feed(group, 1000, chunk);
    // keep_from(1000) = 1000 - 63 - 256: the query at 744 still sees position 681 = 744 - 63.
    EXPECT_TRUE(group.check_truncate(744).ok());
    const Status refused = group.check_truncate(743);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("position 680"), std::string::npos)
        << refused.error().message;
    ASSERT_TRUE(group.truncate(744).ok());
    EXPECT_FALSE(group.check_truncate(743).ok());  // it does not move while it shrinks
    ASSERT_TRUE(group.begin(1).ok());
    EXPECT_TRUE(same(group.visible()[0], {0, 681, 745}));
    for (std::int64_t p = 681; p < 744; ++p)
      ASSERT_TRUE(holds_known(group.store(), p, static_cast<std::uint64_t>(p))) << p;
    group.rollback();
  }
}

TEST(RowGroup, NothingIsRefusedWhileNothingIsDropped) {
  RowGroup group = group_of({0, 64, 1, 256, false});  // as under swa(full)
  feed(group, 1000, 100);
  for (std::int64_t length = 0; length <= 1000; ++length)
    ASSERT_TRUE(group.check_truncate(length).ok()) << length;
  EXPECT_EQ(group.rows_to_keep(), (Ranges{{0, 1000}}));
}

// Where tokens begin to be dropped, one by one.
TEST(RowGroup, DropsFromTheFirstTokenBehindTheSpare) {
  RowGroup group = group_of({0, 8, 1, 4, true});
  feed(group, 11, 1);
  EXPECT_EQ(kept(group), positions_in(0, 11));  // keep_from(11) = 4 - 4
  EXPECT_TRUE(group.check_truncate(0).ok());
  feed(group, 1, 1);
  EXPECT_EQ(kept(group), positions_in(1, 12));
  EXPECT_FALSE(group.check_truncate(1).ok());  // its query would see position 0
  EXPECT_FALSE(group.check_truncate(7).ok());
  EXPECT_TRUE(group.check_truncate(8).ok());  // its query sees 1 to 8
  EXPECT_TRUE(group.check_truncate(0).ok());  // and that one nothing but itself
}

// Rows keep their numbers, so that whatever depends on them (the borders of attention's tiles, and
// with them the last bits of every result) is the same after a restart.
TEST(RowGroup, RestoredRowsHaveTheNumbersTheyHadBefore) {
  for (const WindowRule& rule : {kEverything, kSinksAndWindow, kSliding}) {
    RowGroup group = group_of(rule);
    feed(group, 701, 64);
    RowGroup again = restored(group);
    EXPECT_EQ(again.length(), 701);
    EXPECT_EQ(again.store().n_rows(), 701);
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(group.begin(70).ok());
      ASSERT_TRUE(again.begin(70).ok());
      for (std::size_t i = 0; i < 70; ++i)
        ASSERT_TRUE(same(again.visible()[i], group.visible()[i])) << rule.tokens << " " << i;
      group.rollback();
      again.rollback();
      for (const Position p : kept(group)) {
        ASSERT_TRUE(holds_known(again.store(), p.value(), static_cast<std::uint64_t>(p.value())));
      }
      feed(group, 333, 20);
      feed(again, 333, 20);
      EXPECT_EQ(kept(again), kept(group));
    }
  }
}

TEST(RowGroup, RestoredGroupsTakeBackWhatTheyCouldBefore) {
  for (const WindowRule& rule : {kEverything, kSinksAndWindow, kSliding}) {
    RowGroup group = group_of(rule);
    feed(group, 600, 64);
    ASSERT_TRUE(group.truncate(597).ok());
    RowGroup again = restored(group);
    for (std::int64_t length = 0; length <= 597; ++length) {
      ASSERT_EQ(again.check_truncate(length).ok(), group.check_truncate(length).ok())
          << rule.tokens << " to " << length;
    }
  }
}

TEST(RowGroup, ARestoredTailIsForgottenWhenTheWindowLeavesIt) {
  RowGroup group = group_of(kSinksAndWindow);
  feed(group, 600, 64);
  RowGroup again = restored(group);
  EXPECT_EQ(again.store().segments(LayerIndex(0)).size(), 2u);  // the sinks and the tail
  feed(again, 600, 64);
  EXPECT_EQ(again.store().segments(LayerIndex(0)).front().n_rows, 4);
  EXPECT_GE(again.store().segments(LayerIndex(0))[1].first_row, 600);
  for (std::int64_t p = 0; p < 4; ++p)
    EXPECT_TRUE(holds_known(again.store(), p, static_cast<std::uint64_t>(p)));
}

TEST(RowGroup, RestoreRefusesRowsThatAreMissing) {
  const auto refused = [](const WindowRule& rule, std::vector<Position> rows, std::int64_t length) {
    RowGroup group = group_of(rule);
    const SavedGroup saved(small_layout(), std::move(rows));
    const Status status = group.restore(saved.rows(), length);
    return !status.ok() && status.error().code == ErrorCode::kCorrupt;
  };
  const WindowRule rule{2, 3, 1, 1, true};  // after 9 tokens the next query sees 0, 1 and 7, 8
  const auto at = [](std::initializer_list<std::int64_t> values) {
    std::vector<Position> out;
    for (const std::int64_t value : values) out.emplace_back(value);
    return out;
  };
  EXPECT_FALSE(refused(rule, at({0, 1, 7, 8}), 9));
  EXPECT_FALSE(refused(rule, at({0, 1, 3, 5, 7, 8}), 9));  // more than needed, with gaps
  EXPECT_TRUE(refused(rule, at({0, 1, 8}), 9));
  EXPECT_TRUE(refused(rule, at({0, 1, 7}), 9));
  EXPECT_TRUE(refused(rule, at({0, 7, 8}), 9));
  EXPECT_TRUE(refused(rule, at({1, 7, 8}), 9));
  EXPECT_TRUE(refused(rule, at({7, 8}), 9));
  EXPECT_TRUE(refused(rule, at({0, 1, 7, 8, 9}), 9));
  EXPECT_TRUE(refused(kEverything, at({0, 1, 3}), 4));
  EXPECT_TRUE(refused(kEverything, at({0, 1, 2}), 4));
}

// Of rows with gaps, those behind the last gap count as kept: nothing before can be taken back to.
TEST(RowGroup, RestoredGapsCanNotBeTakenBackInto) {
  RowGroup group = group_of({2, 3, 1, 1, true});
  const SavedGroup saved(small_layout(), {Position(0), Position(1), Position(3), Position(5),
                                          Position(6), Position(7), Position(8)});
  ASSERT_TRUE(group.restore(saved.rows(), 9).ok());
  EXPECT_TRUE(group.check_truncate(7).ok());   // sees 5, 6
  EXPECT_FALSE(group.check_truncate(6).ok());  // would see 4
  EXPECT_EQ(kept(group),
            (std::vector{Position(0), Position(1), Position(6), Position(7), Position(8)}));
}

TEST(RowGroup, ClonesGoTheirOwnWays) {
  RowGroup group = group_of(kSliding);
  feed(group, 500, 64);
  RowGroup branch = group.clone();
  ASSERT_TRUE(branch.truncate(400).ok());
  feed(branch, 5, 5);
  EXPECT_EQ(group.length(), 500);
  EXPECT_EQ(branch.length(), 405);
  for (std::int64_t p = 400; p < 405; ++p)
    EXPECT_TRUE(holds_known(branch.store(), p, static_cast<std::uint64_t>(p)));
  for (std::int64_t p = 450; p < 500; ++p)
    EXPECT_TRUE(holds_known(group.store(), p, static_cast<std::uint64_t>(p)));
}

}  // namespace
}  // namespace volvelle
