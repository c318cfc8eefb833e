// Window rules against their definition, by brute force over positions; which rule a layer follows;
// and that no spec shows a layer more than its own window.
#include "volvelle/memory/window_rule.hpp"

#include <gtest/gtest.h>

#include <random>

namespace volvelle {
namespace {

MemorySpec spec_of(const std::string& text) { return *parse_memory_spec(text); }

// E(t) by counting: the largest multiple of the block that leaves at least `tokens` positions.
std::int64_t counted_begin(const WindowRule& rule, std::int64_t t) {
  std::int64_t e = 0;
  if (rule.tokens > 0) {
    while (t + 1 - (e + rule.block) >= rule.tokens) e += rule.block;
  }
  return std::max(e, rule.sinks);
}

TEST(WindowRule, BeginsWhereCountingEnds) {
  std::mt19937_64 random(1);
  const auto up_to = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % (n + 1)); };
  for (int i = 0; i < 200; ++i) {
    const WindowRule rule{up_to(6), up_to(3) == 0 ? 0 : 1 + up_to(90), 1 + up_to(70), up_to(64),
                          true};
    std::int64_t before = 0;
    for (std::int64_t t = 0; t < 400; t += 1 + up_to(5)) {
      ASSERT_EQ(rule.begin(t), counted_begin(rule, t)) << rule.tokens << " at " << t;
      ASSERT_LE(before, rule.begin(t));  // what was dropped is never seen again
      before = rule.begin(t);
    }
  }
}

TEST(WindowRule, WithoutAWindowEverythingBehindTheSinksIsSeen) {
  EXPECT_EQ((WindowRule{}.begin(1000000)), 0);
  EXPECT_EQ((WindowRule{4, 0, 64, 64, true}.begin(1000000)), 4);
}

TEST(WindowRule, KeepsASpareBeforeTheWindowButNotTheSinksTwice) {
  const WindowRule rule{4, 100, 8, 24, true};
  EXPECT_EQ(rule.begin(1000), 896);  // 8 floor(901 / 8)
  EXPECT_EQ(rule.keep_from(1000), 896 - 24);
  EXPECT_EQ(rule.keep_from(110), 4);  // begin 8: the spare would reach before the sinks' end
  EXPECT_EQ(rule.keep_from(3), 3);    // fewer tokens than sinks
  EXPECT_EQ(rule.keep_from(0), 0);
  EXPECT_EQ((WindowRule{4, 100, 8, 24, false}.keep_from(1000)), 0);  // nothing is ever dropped
}

TEST(WindowRule, LayersWithoutAWindowFollowTheSpec) {
  EXPECT_EQ(window_rule(spec_of("full"), 0), WindowRule{});
  EXPECT_EQ(window_rule(spec_of("sink(4)+window(100,block=8)"), 0),
            (WindowRule{4, 100, 8, 8, true}));
  EXPECT_EQ(window_rule(spec_of("window(100)"), 0), (WindowRule{0, 100, 64, 64, true}));
  EXPECT_EQ(window_begin(spec_of("sink(4)+window(100,block=8)"), 1000), 896);
  EXPECT_EQ(window_begin(spec_of("full"), 1000), 0);
}

TEST(WindowRule, LayersWithAWindowFollowTheNarrowerOne) {
  const WindowRule own{0, 64, 1, kLayerWindowSpare, true};
  EXPECT_EQ(window_rule(spec_of("full"), 64), own);
  EXPECT_EQ(window_rule(spec_of("sink(4)+window(64)"), 64), own);
  EXPECT_EQ(window_rule(spec_of("sink(4)+window(900)"), 64), own);
  EXPECT_EQ(window_rule(spec_of("sink(4)+window(50)"), 64),
            (WindowRule{0, 50, 1, kLayerWindowSpare, true}));
  EXPECT_EQ(window_rule(spec_of("full+swa(full)"), 64),
            (WindowRule{0, 64, 1, kLayerWindowSpare, false}));
}

// A query at t of a layer with a window of W sees (t - W, t] in the model. Blocks of the spec's
// window and its sinks must not reach behind that.
TEST(WindowRule, ALayerNeverSeesMoreThanItsOwnWindowOrMoreThanTheSpec) {
  for (const char* text :
       {"full", "window(50)", "sink(4)+window(50)", "sink(2)+window(7,block=300)",
        "sink(1)+window(600)", "full+swa(full)"}) {
    const MemorySpec spec = spec_of(text);
    for (const std::int64_t window : {2, 8, 50, 64, 100, 113, 600}) {
      const WindowRule rule = window_rule(spec, window);
      EXPECT_EQ(rule.sinks, 0) << text << " " << window;
      for (std::int64_t t = 0; t < 1500; ++t) {
        ASSERT_GE(rule.begin(t), std::max<std::int64_t>(0, t - window + 1)) << text << " at " << t;
        ASSERT_LE(rule.begin(t), t);  // a token sees itself
        if (!spec.window) continue;
        ASSERT_GE(rule.begin(t), t + 1 - spec.window->tokens - spec.window->block) << text;
      }
    }
  }
}

}  // namespace
}  // namespace volvelle
