// Windowed memories: outputs do not depend on chunking, and are those of the rule, computed by
// plain loops in float64.
//
//   query t attends to { j <= t : j < n_sink or j >= E(t) },  E(t) = max(n_sink, B floor((t + 1 -
//   W) / B))
//
// Bit-equal over chunks in the deterministic mode, also when rows were dropped on the way and when
// the memory went through a clone at every chunk. Tolerance against float64: as in fold_test.cpp.
#include <gtest/gtest.h>

#include "law/toy_driver.hpp"

namespace volvelle::testing {
namespace {

constexpr std::int64_t kTokens = 1200;  // more than one block of memory

struct Window {
  std::int64_t sink, tokens, block;
  std::string spec() const {
    const std::string sinks = sink > 0 ? "sink(" + std::to_string(sink) + ")+" : "";
    return sinks + "window(" + std::to_string(tokens) + ",block=" + std::to_string(block) +
           ")+kv(k=f32,v=f32)";
  }
  // E(t) by counting.
  bool sees(std::int64_t t, std::int64_t j) const {
    std::int64_t begin = 0;
    while (begin + block <= t + 1 - tokens) begin += block;
    return j < sink || j >= begin;
  }
};

class FoldWindow : public ::testing::TestWithParam<Window> {};

TEST_P(FoldWindow, ChunksAgreeAndFollowTheRule) {
  const Window window = GetParam();
  const auto net = make_toy<Fp32>(51);
  const std::vector<TokenId> tokens = random_tokens(kTokens, 52);
  const DriverOptions options{.spec = window.spec()};
  const auto expected = driver_logits(net, tokens, 1, options);
  for (const std::int64_t chunk : {64, 512}) {
    EXPECT_EQ(driver_logits(net, tokens, chunk, options), expected) << chunk;
  }
  const DriverOptions fast{.spec = window.spec(), .deterministic = false, .n_threads = 2};
  EXPECT_LE(max_difference(driver_logits(net, tokens, 3, fast), expected), 5e-5);

  PlainMemory<Fp64> reference(kToyLayers, kToyHeads);
  reference.restrict_to([&](std::int64_t t, std::int64_t j) { return window.sees(t, j); });
  EXPECT_LE(max_difference(expected, toy_fold(make_toy<Fp64>(51), reference, tokens, kTokens)),
            1e-4);
  // The window does matter on this text.
  EXPECT_GT(max_difference(expected, driver_logits(net, tokens, kTokens)), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Windows, FoldWindow,
                         ::testing::Values(Window{4, 100, 64}, Window{4, 60, 1}, Window{0, 130, 7},
                                           Window{70, 64, 64}));

}  // namespace
}  // namespace volvelle::testing
