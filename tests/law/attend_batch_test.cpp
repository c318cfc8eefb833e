// Several sequences in one call, and rows cut into partitions: each task as if it were alone.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "law/attend_case.hpp"

namespace volvelle::law {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class AttendBatch : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
};

/// Sequences of one layer: lengths, tokens and windows differ.
std::deque<Case> sequences(const AttentionShape& shape, int n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::deque<Case> cases;
  for (int i = 0; i < n; ++i) {
    const std::int64_t tokens =
        i % 3 == 0 ? 1 : static_cast<std::int64_t>(random() % (i % 3 == 1 ? 4 : 40)) + 1;
    const auto prefix = static_cast<std::int64_t>(random() % 900);
    const bool window = i % 4 == 3;
    cases.emplace_back(
        CaseOptions{.shape = shape,
                    .n_rows = prefix + tokens,
                    .visible = causal(prefix, tokens, window ? 3 : 0, window ? 130 : 0),
                    .cuts = {prefix / 3, prefix / 2},
                    .learned_sinks = i % 5 == 4,
                    .seed = seed + static_cast<std::uint32_t>(i)});
  }
  return cases;
}

std::vector<AttendTask> tasks_of(std::deque<Case>& cases, bool deterministic) {
  std::vector<AttendTask> tasks;
  for (Case& c : cases) {
    tasks.push_back(c.task());
    tasks.back().deterministic = deterministic;
  }
  return tasks;
}

TEST_P(AttendBatch, EachTaskAsIfAlone) {
  std::uint32_t seed = 3000;
  for (const int n : {2, 5, 32}) {
    for (const AttentionShape& shape :
         {shape_of(2, 3, 64, 64), shape_of(1, 4, 80, 48, ElementType::kQ8_0, ElementType::kBF16)}) {
      std::deque<Case> cases = sequences(shape, n, seed += 100);
      AttendWorkspace workspace = workspace_for(shape);
      std::vector<std::vector<double>> expected;
      std::vector<std::vector<float>> alone;
      for (Case& c : cases) {
        AttendTask task = c.task();
        expected.push_back(reference_attend(task));
        task.deterministic = true;
        attend(task, workspace, 1);
        alone.push_back(c.out());
      }
      for (const int threads : {1, 2, 4}) {
        for (const bool deterministic : {false, true}) {
          const std::vector<AttendTask> tasks = tasks_of(cases, deterministic);
          attend(tasks, workspace, threads);
          EXPECT_FALSE(workspace.take_not_finite());
          for (std::size_t i = 0; i < cases.size(); ++i) {
            EXPECT_LE(max_difference(cases[i].out(), expected[i]), cases[i].tolerance())
                << "task " << i << " of " << n << ", threads " << threads;
            EXPECT_TRUE(!deterministic || same_bits(cases[i].out(), alone[i])) << i;
          }
        }
      }
    }
  }
}

// Calls of all kinds in a row on one workspace: nothing of one may be left for the next.
TEST_P(AttendBatch, OneWorkspaceServesBatchAfterBatch) {
  std::mt19937 random(31);
  AttendWorkspace workspace = AttendWorkspace::create(4, 12, 64, 64).value();
  for (int trial = 0; trial < 25; ++trial) {
    const AttentionShape shape =
        shape_of(1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 4), 64, 64);
    std::deque<Case> cases =
        sequences(shape, static_cast<int>(random() % 7), static_cast<std::uint32_t>(random()));
    std::vector<AttendTask> tasks = tasks_of(cases, false);
    for (std::size_t i = 0; i < tasks.size(); i += 2) tasks[i].deterministic = random() % 2 == 0;
    attend(tasks, workspace, 1 + static_cast<int>(random() % 4));
    for (Case& c : cases) {
      const std::vector<float> out = c.out();
      EXPECT_LE(max_difference(out, reference_attend(c.task())), c.tolerance()) << trial;
    }
  }
  EXPECT_FALSE(workspace.take_not_finite());
}

TEST_P(AttendBatch, TasksThatSeeNothingAndTasksWithoutTokens) {
  const AttentionShape shape = shape_of(2, 2, 32, 32);
  const CaseOptions nothing{.shape = shape, .n_rows = 9, .visible = {{0, 4, 4}}, .seed = 32};
  Case blind(nothing);
  Case also_blind(nothing);  // every task has its own output
  Case sees({.shape = shape, .n_rows = 400, .visible = causal(399, 1), .seed = 33});
  AttendWorkspace workspace = workspace_for(shape);
  for (const bool deterministic : {false, true}) {
    for (const int threads : {1, 3}) {
      std::vector<AttendTask> tasks = {blind.task(), AttendTask{}, sees.task(), also_blind.task()};
      tasks[1].shape = shape;
      for (AttendTask& task : tasks) task.deterministic = deterministic;
      attend(tasks, workspace, threads);
      EXPECT_EQ(blind.out(), std::vector<float>(4 * 32, 0.0f));
      EXPECT_EQ(also_blind.out(), std::vector<float>(4 * 32, 0.0f));
      const std::vector<float> out = sees.out();
      EXPECT_LE(max_difference(out, reference_attend(sees.task())), sees.tolerance());
    }
  }
  attend(std::span<const AttendTask>(), workspace, 2);
  EXPECT_FALSE(workspace.take_not_finite());
}

TEST_P(AttendBatch, TooManyTasksAndTooLargeOnesAreReported) {
  const AttentionShape shape = shape_of(1, 1, 32, 32);
  std::deque<Case> cases = sequences(shape, kMaxTasks + 1, 34);
  AttendWorkspace workspace = workspace_for(shape);
  std::vector<AttendTask> tasks = tasks_of(cases, false);
  attend(tasks, workspace, 2);
  EXPECT_TRUE(workspace.take_not_finite());
  EXPECT_TRUE(std::isnan(cases[0].out()[0]));
  tasks.resize(3);
  tasks[2].shape.head_dim_k = 33;
  attend(tasks, workspace, 2);
  EXPECT_TRUE(workspace.take_not_finite());
  EXPECT_TRUE(std::isnan(cases[0].out()[0]));
}

/// Deterministic runs of the last `tokens` tokens in chunks of `chunk`.
std::vector<float> in_chunks(Case& c, AttendWorkspace& workspace, std::int64_t chunk, int threads) {
  const AttendTask whole = c.task();
  for (std::int64_t begin = 0; begin < whole.n_tokens(); begin += chunk) {
    AttendTask part = whole;
    part.visible =
        whole.visible.subspan(static_cast<std::size_t>(begin),
                              static_cast<std::size_t>(std::min(chunk, whole.n_tokens() - begin)));
    part.q += begin * part.q_token_stride;
    part.out += begin * part.out_token_stride;
    part.deterministic = true;
    attend(part, workspace, threads);
  }
  return c.out();
}

void expect_one_result(CaseOptions options) {
  Case c(std::move(options));
  AttendWorkspace workspace = workspace_for(c.options().shape, 7);
  const std::vector<float> once = in_chunks(c, workspace, c.task().n_tokens(), 1);
  EXPECT_LE(max_difference(once, reference_attend(c.task())), c.tolerance());
  for (const std::int64_t chunk : {1, 3, 64}) {
    for (const int threads : {1, 2, 7}) {
      EXPECT_TRUE(same_bits(once, in_chunks(c, workspace, chunk, threads)))
          << "chunk " << chunk << " threads " << threads;
    }
  }
  EXPECT_FALSE(workspace.take_not_finite());
}

// Rows are closed and merged at multiples of 1,024, by one thread or by many.
TEST_P(AttendBatch, PartitionsChangeNoBit) {
  for (const std::int64_t prefix : {1020, 1024, 3000, 6130}) {
    expect_one_result({.shape = shape_of(1, 3, 32, 48),
                       .n_rows = prefix + 40,
                       .visible = causal(prefix, 40),
                       .amplitude = 3.0f,
                       .seed = 35});
  }
}

TEST_P(AttendBatch, PartitionsOfSinksAndWindows) {
  expect_one_result({.shape = shape_of(2, 2, 32, 32),
                     .n_rows = 9000,
                     .visible = causal(8960, 40, 1500, 2500),
                     .seed = 36});
  expect_one_result({.shape = shape_of(1, 1, 16, 16),
                     .n_rows = 5000,
                     .visible = causal(4990, 10, 4, 64),
                     .seed = 37});
}

// From 65,537 visible rows on partitions are twice as long; tokens of one tile may differ in that.
TEST_P(AttendBatch, PartitionsGrowWithTheRows) {
  expect_one_result(
      {.shape = shape_of(1, 1, 4, 4), .n_rows = 65'540, .visible = causal(65'533, 7), .seed = 38});
  expect_one_result(
      {.shape = shape_of(1, 1, 4, 4), .n_rows = 70'000, .visible = causal(69'996, 4), .seed = 39});
}

// One KV head over more threads than blocks, and heads that begin and end inside of shares.
TEST_P(AttendBatch, DecodeHeadsOverManyThreads) {
  for (const int kv_heads : {1, 3}) {
    for (const std::int64_t rows : {5, 300, 1000, 3000}) {
      Case c({.shape = shape_of(kv_heads, 2, 32, 32),
              .n_rows = rows,
              .visible = causal(rows - 2, 2),
              .seed = 40});
      const std::vector<double> expected = reference_attend(c.task());
      AttendWorkspace workspace = workspace_for(c.options().shape, 8);
      for (const int threads : {1, 2, 3, 5, 8}) {
        attend(c.task(), workspace, threads);
        EXPECT_LE(max_difference(c.out(), expected), c.tolerance()) << rows << " " << threads;
      }
      EXPECT_FALSE(workspace.take_not_finite());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttendBatch, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace volvelle::law
