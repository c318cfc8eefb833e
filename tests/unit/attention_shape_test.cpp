// Shapes and workspaces that make no sense are refused, with the numbers in the message.
#include <gtest/gtest.h>

#include "law/attend_case.hpp"

namespace volvelle {
namespace {

TEST(AttentionShape, AcceptsWhatModelsHave) {
  EXPECT_TRUE(validate(law::shape_of(3, 3, 64, 64)).ok());
  EXPECT_TRUE(validate(law::shape_of(1, 4, 256, 256)).ok());
  EXPECT_TRUE(validate(law::shape_of(8, 16, 192, 128)).ok());
  EXPECT_TRUE(validate(law::shape_of(1, 1, 512, 1)).ok());
}

TEST(AttentionShape, RefusesNonsense) {
  const AttentionShape good = law::shape_of(2, 3, 64, 64);
  const auto refused = [&](auto change) {
    AttentionShape shape = good;
    change(shape);
    const Status status = validate(shape);
    return !status.ok() && status.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](AttentionShape& s) { s.n_heads = 5; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.n_heads = 0; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.n_kv_heads = 0; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.n_kv_heads = -2; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.head_dim_k = 0; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.head_dim_v = kMaxHeadDim + 1; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.scale = std::numeric_limits<float>::infinity(); }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.soft_cap = -1.0f; }));
  EXPECT_TRUE(
      refused([](AttentionShape& s) { s.soft_cap = std::numeric_limits<float>::quiet_NaN(); }));
}

TEST(AttendWorkspace, RefusesNonsense) {
  EXPECT_TRUE(AttendWorkspace::create(2, 8, 64, 64).ok());
  EXPECT_FALSE(AttendWorkspace::create(0, 8, 64, 64).ok());
  EXPECT_FALSE(AttendWorkspace::create(2, 0, 64, 64).ok());
  EXPECT_FALSE(AttendWorkspace::create(2, 8, kMaxHeadDim + 1, 64).ok());
}

// One larger than it was made for: reported, nothing written.
TEST(AttendWorkspace, TooSmallForTheTaskIsReported) {
  law::Case c({.shape = law::shape_of(2, 3, 64, 64),
               .n_rows = 10,
               .visible = law::causal(9, 1),
               .seed = 61});
  AttendWorkspace workspace = AttendWorkspace::create(1, 6, 32, 64).value();
  attend(c.task(), workspace, 1);
  EXPECT_TRUE(workspace.take_not_finite());
  EXPECT_TRUE(std::isnan(c.out()[0]));
  EXPECT_GT(workspace.bytes(), std::size_t{6 * 64 * 4});
}

// One workspace serves tasks of different shapes, paths and thread counts one after another.
TEST(AttendWorkspace, ServesMixedTasks) {
  AttendWorkspace workspace = AttendWorkspace::create(4, 32, 128, 128).value();
  std::mt19937 random(62);
  for (int i = 0; i < 60; ++i) {
    const int dim = 16 * (1 + static_cast<int>(random() % 8));
    const std::int64_t tokens = 1 + static_cast<std::int64_t>(random() % 9);
    const std::int64_t rows = tokens + static_cast<std::int64_t>(random() % 700);
    law::Case c({.shape = law::shape_of(1 + static_cast<int>(random() % 4),
                                        1 + static_cast<int>(random() % 8), dim, dim),
                 .n_rows = rows,
                 .visible = law::causal(rows - tokens, tokens),
                 .seed = static_cast<std::uint32_t>(random())});
    AttendTask task = c.task();
    attend(task, workspace, 1 + static_cast<int>(random() % 4));
    EXPECT_LE(law::max_difference(c.out(), reference_attend(task)), c.tolerance()) << i;
  }
  EXPECT_FALSE(workspace.take_not_finite());
}

}  // namespace
}  // namespace volvelle
