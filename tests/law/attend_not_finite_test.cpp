// NaN and infinity anywhere in what a task reads are reported; the mark is taken once and good
// tasks leave none.
#include <gtest/gtest.h>

#include "law/attend_case.hpp"

namespace volvelle::law {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class NotFinite : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
};

TEST_P(NotFinite, IsReportedFromAnywhere) {
  for (const ElementType type : kElementTypes) {
    for (const float cap : {0.0f, 10.0f}) {
      if (cap > 0.0f && type != ElementType::kF16) continue;  // the cap sees scores, not elements
      for (const std::int64_t tokens : {1, 4, 30}) {
        for (const float bad : {kNan, kInfinity, -kInfinity}) {
          AttentionShape shape = shape_of(2, 3, 72, 72, type, type);
          shape.soft_cap = cap;
          Case c(
              {.shape = shape, .n_rows = 330, .visible = causal(330 - tokens, tokens), .seed = 41});
          AttendWorkspace workspace = workspace_for(shape);
          const auto is_reported = [&](std::vector<float>& where, std::size_t index, bool states) {
            const float before = where[index];
            where[index] = bad;
            c.cut({});
            AttendTask task = c.task();
            std::vector<float> m(static_cast<std::size_t>(tokens) * 6), d(m);
            if (states) {
              task.m = m.data();
              task.d = d.data();
            }
            attend(task, workspace, 2);
            where[index] = before;
            return workspace.take_not_finite();
          };
          for (const bool states : {false, true}) {
            // First, middle and last elements; rows 0, 155 and the last one that only the last
            // token sees.
            for (const std::size_t index :
                 {std::size_t{0}, std::size_t{155 * 72 + 71}, std::size_t{329 * 72 + 70},
                  std::size_t{(330 + 7) * 72 + 3}}) {
              EXPECT_TRUE(is_reported(c.k(), index, states))
                  << "K " << index << " " << bad << " tokens " << tokens;
              EXPECT_TRUE(is_reported(c.v(), index, states))
                  << "V " << index << " " << bad << " tokens " << tokens;
            }
            EXPECT_TRUE(is_reported(c.q(), 0, states));
            EXPECT_TRUE(is_reported(c.q(), c.q().size() - 1, states));
          }
          c.cut({});
          attend(c.task(), workspace, 2);
          EXPECT_FALSE(workspace.take_not_finite()) << "a good task after bad ones";
        }
      }
    }
  }
}

TEST_P(NotFinite, OverflowingScoresAreReported) {
  for (const std::int64_t tokens : {1, 20}) {
    Case c({.shape = shape_of(1, 2, 64, 64, ElementType::kF32, ElementType::kF32),
            .n_rows = 100,
            .visible = causal(100 - tokens, tokens),
            .amplitude = 1e38f,
            .seed = 42});
    AttendWorkspace workspace = workspace_for(c.options().shape);
    attend(c.task(), workspace, 1);
    EXPECT_TRUE(workspace.take_not_finite());
    EXPECT_FALSE(workspace.take_not_finite());
  }
}

// Finite inputs beyond what a type can store must not come back as something smaller.
TEST_P(NotFinite, OverflowOfAStorageTypeIsReported) {
  for (const ElementType type : kElementTypes) {
    if (type == ElementType::kF32) continue;  // stores all of them
    for (const std::int64_t tokens : {1, 30}) {
      Case c({.shape = shape_of(1, 2, 80, 80, type, type),
              .n_rows = 100,
              .visible = causal(100 - tokens, tokens),
              .seed = 43});
      AttendWorkspace workspace = workspace_for(c.options().shape);
      for (std::vector<float>* where : {&c.k(), &c.v()}) {
        const float before = (*where)[50 * 80 + 17];
        (*where)[50 * 80 + 17] = std::numeric_limits<float>::max();
        c.cut({});
        attend(c.task(), workspace, 2);
        EXPECT_TRUE(workspace.take_not_finite()) << to_string(type) << " " << tokens;
        (*where)[50 * 80 + 17] = before;
      }
      c.cut({});
      attend(c.task(), workspace, 2);
      EXPECT_FALSE(workspace.take_not_finite());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, NotFinite, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace volvelle::law
