// The tiled path gives the same bits for any chunking, segmentation and number of threads; decode
// for any segmentation.
#include <gtest/gtest.h>

#include <cstring>

#include "law/attend_case.hpp"

namespace volvelle::law {
namespace {

constexpr std::int64_t kTokens = 300;

class AttendBits : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }
};

/// A folded reading of all tokens in chunks: rows appear only once their chunk is there, as in a
/// growing store.
std::vector<float> read_in_chunks(Case& c, AttendWorkspace& workspace, std::int64_t chunk,
                                  int threads, const std::vector<std::int64_t>& cuts) {
  c.cut(cuts);
  const AttendTask whole = c.task();
  for (std::int64_t begin = 0; begin < kTokens; begin += chunk) {
    AttendTask part = whole;
    const std::int64_t n = std::min(chunk, kTokens - begin);
    part.visible =
        whole.visible.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
    part.q += begin * part.q_token_stride;
    part.out += begin * part.out_token_stride;
    part.deterministic = true;
    std::vector<KeyValueSegment> present;
    for (KeyValueSegment segment : whole.segments) {
      segment.n_rows = std::min(segment.n_rows, part.visible.back().end - segment.first_row);
      if (segment.n_rows > 0) present.push_back(segment);
    }
    part.segments = present;
    attend(part, workspace, threads);
  }
  return c.out();
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_all_ways(CaseOptions options) {
  Case c(std::move(options));
  AttendWorkspace workspace = workspace_for(c.options().shape);
  const std::vector<float> once = read_in_chunks(c, workspace, kTokens, 1, {});
  EXPECT_LE(max_difference(once, reference_attend(c.task())), c.tolerance());
  for (const std::int64_t chunk : {1, 7, 32, 100, 128, 300}) {
    for (const int threads : {1, 2, 4}) {
      EXPECT_TRUE(same_bits(once, read_in_chunks(c, workspace, chunk, threads, {})))
          << "chunk " << chunk << " threads " << threads;
    }
    EXPECT_TRUE(
        same_bits(once, read_in_chunks(c, workspace, chunk, 2, {1, 2, 63, 64, 70, 200, 201})))
        << "chunk " << chunk;
  }
}

TEST_P(AttendBits, Causal) {
  check_all_ways({.shape = shape_of(2, 3, 64, 64),
                  .n_rows = kTokens,
                  .visible = causal(0, kTokens),
                  .seed = 11});
}

TEST_P(AttendBits, OddDimsAndFloats) {
  check_all_ways({.shape = shape_of(1, 7, 100, 36, ElementType::kF32, ElementType::kF32),
                  .n_rows = kTokens,
                  .visible = causal(0, kTokens),
                  .seed = 12});
}

TEST_P(AttendBits, QuantizedRows) {
  check_all_ways({.shape = shape_of(1, 3, 80, 36, ElementType::kQ8_0, ElementType::kQ4_0),
                  .n_rows = kTokens,
                  .visible = causal(0, kTokens),
                  .seed = 17});
}

TEST_P(AttendBits, WindowAndSinks) {
  check_all_ways({.shape = shape_of(2, 1, 64, 64),
                  .n_rows = kTokens,
                  .visible = causal(0, kTokens, 4, 100),
                  .seed = 13});
}

// A window that moves by one row per token begins anywhere inside a key tile.
TEST_P(AttendBits, SlidingWindow) {
  for (const std::int64_t sinks : {0, 3}) {
    std::vector<VisibleRows> visible;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t first = std::max<std::int64_t>(0, t + 1 - 90);
      visible.push_back({std::min(sinks, first), first, t + 1});
    }
    check_all_ways(
        {.shape = shape_of(1, 3, 64, 64), .n_rows = kTokens, .visible = visible, .seed = 16});
  }
}

TEST_P(AttendBits, SoftCapAndLearnedSinks) {
  AttentionShape shape = shape_of(1, 4, 48, 48);
  shape.soft_cap = 5.0f;
  check_all_ways({.shape = shape,
                  .n_rows = kTokens,
                  .visible = causal(0, kTokens),
                  .learned_sinks = true,
                  .amplitude = 4.0f,
                  .seed = 14});
}

TEST_P(AttendBits, StateOutputs) {
  Case c({.shape = shape_of(2, 3, 64, 64),
          .n_rows = kTokens,
          .visible = causal(0, kTokens),
          .seed = 15});
  AttendWorkspace workspace = workspace_for(c.options().shape);
  std::vector<float> first[3];
  for (const int threads : {1, 3}) {
    AttendTask task = c.task();
    std::vector<float> m(kTokens * 6), d(kTokens * 6);
    task.m = m.data();
    task.d = d.data();
    attend(task, workspace, threads);
    if (threads == 1) {
      first[0] = m, first[1] = d, first[2] = c.out();
    } else {
      EXPECT_TRUE(same_bits(first[0], m) && same_bits(first[1], d) && same_bits(first[2], c.out()));
    }
  }
}

// Decode: where a segment begins must not matter; also not where the tokens before it were
// computed.
TEST_P(AttendBits, DecodeForAnySegmentation) {
  std::size_t type = 0;
  for (const int group : {1, 3, 4, 7, 8}) {
    for (const std::int64_t tokens : {1, 4}) {
      const ElementType k = kElementTypes[type++ % kElementTypes.size()];
      const ElementType v = kElementTypes[(type + group) % kElementTypes.size()];
      Case c({.shape = shape_of(2, group, 80, 100, k, v),
              .n_rows = 600,
              .visible = causal(600 - tokens, tokens),
              .seed = 21});
      AttendWorkspace workspace = workspace_for(c.options().shape);
      attend(c.task(), workspace, 2);
      const std::vector<float> whole = c.out();
      std::vector<std::int64_t> every_row;
      for (std::int64_t r = 1; r < 600; ++r) every_row.push_back(r);
      for (const std::vector<std::int64_t>& cuts :
           {std::vector<std::int64_t>{1}, {2, 5, 9, 255, 257, 511, 598}, every_row}) {
        c.cut(cuts);
        attend(c.task(), workspace, 2);
        EXPECT_TRUE(same_bits(whole, c.out()))
            << "group " << group << " tokens " << tokens << " cuts " << cuts.size();
      }
    }
  }
}

// One token of a block of four must not depend on the others.
TEST_P(AttendBits, DecodeTokensAreIndependent) {
  Case four(
      {.shape = shape_of(2, 3, 64, 64), .n_rows = 500, .visible = causal(496, 4), .seed = 22});
  AttendWorkspace workspace = workspace_for(four.options().shape);
  attend(four.task(), workspace, 1);
  const std::vector<float> together = four.out();
  AttendTask task = four.task();
  const auto all = task.visible;
  for (std::size_t t = 0; t < 4; ++t) {
    AttendTask one = task;
    one.visible = all.subspan(t, 1);
    one.q += static_cast<std::ptrdiff_t>(t) * task.q_token_stride;
    one.out += static_cast<std::ptrdiff_t>(t) * task.out_token_stride;
    attend(one, workspace, 1);
  }
  EXPECT_TRUE(same_bits(together, four.out()));
}

INSTANTIATE_TEST_SUITE_P(Isa, AttendBits, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace volvelle::law
