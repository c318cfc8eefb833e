// Every known way of driving a folded memory wrongly is seen by the comparison with one pass.
//
// Seven defects of real implementations (memory_driver.hpp), each run as it would happen: wrong
// positions, wrong masks, dropped rows, rows stored twice. Required: max |logit difference| > 0.1,
// where the correct fold gives exactly 0. Three of them are exactly right at depth 1, so a check of
// the first transition alone would miss them.
#include <gtest/gtest.h>

#include "law/toy_driver.hpp"

namespace volvelle::testing {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kChunk = 32;

struct Case {
  const char* name;
  Mutation mutation;
  bool right_at_depth_1;
};

class MutationSuite : public ::testing::TestWithParam<Case> {
 protected:
  const ToyNet<Fp32> net_ = make_toy<Fp32>(61);
  const std::vector<TokenId> tokens_ = random_tokens(kTokens, 62);
};

std::vector<float> chunks(const std::vector<float>& logits, std::size_t begin, std::size_t end) {
  const auto size = static_cast<std::ptrdiff_t>(kChunk * kToyVocab);
  return {logits.begin() + static_cast<std::ptrdiff_t>(begin) * size,
          logits.begin() + static_cast<std::ptrdiff_t>(end) * size};
}

TEST_P(MutationSuite, IsCaught) {
  for (const char* spec : {"full+kv(k=f32,v=f32)", "full"}) {
    const auto full = driver_logits(net_, tokens_, kTokens, {.spec = spec});
    const auto right = driver_logits(net_, tokens_, kChunk, {.spec = spec});
    const auto wrong =
        driver_logits(net_, tokens_, kChunk, {.spec = spec, .mutation = GetParam().mutation});
    EXPECT_EQ(right, full);
    EXPECT_GT(max_difference(wrong, full), 0.1);
    EXPECT_EQ(chunks(wrong, 0, 1), chunks(full, 0, 1));  // no chunk has come before the first
    EXPECT_EQ(chunks(wrong, 1, 2) == chunks(full, 1, 2), GetParam().right_at_depth_1);
    EXPECT_NE(chunks(wrong, 2, 3), chunks(full, 2, 3));
  }
}

// Windows of 60 behind 4 sinks begin to drop rows in the chunk of position 64, the third.
INSTANTIATE_TEST_SUITE_P(
    Defects, MutationSuite,
    ::testing::Values(Case{"PositionsRestart", Mutation::kPositionsRestart, false},
                      Case{"OffsetStuck", Mutation::kOffsetStuck, true},
                      Case{"TopLeftMask", Mutation::kTopLeftMask, false},
                      Case{"OffByOne", Mutation::kOffByOne, false},
                      Case{"PreviousChunkOnly", Mutation::kPreviousChunkOnly, true},
                      Case{"SinkWindow", Mutation::kSinkWindow, true},
                      Case{"DoubleAppend", Mutation::kDoubleAppend, true}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace volvelle::testing
