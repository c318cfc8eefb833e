// Retrieval through memory and attention, with nothing trained: 100 % is a theorem of the net
// (wired_net.hpp).
//
// Distances {1, N/4, N/2, N-1, N} chunks for (T, C) = (2048, 32), (2048, 128), (8192, 128). The
// middle ones matter: stuck or restarted positions still find needles in the first two chunks, and
// a window finds the last one.
#include <gtest/gtest.h>

#include "law/wired_net.hpp"

namespace volvelle::testing {
namespace {

struct Size {
  std::int64_t tokens, chunk;
  std::int64_t n_chunks() const { return tokens / chunk; }
  std::vector<std::int64_t> distances() const {
    const std::int64_t n = n_chunks();
    return {1, n / 4, n / 2, n - 1, n};
  }
};
constexpr Size kSizes[] = {{2048, 32}, {2048, 128}, {8192, 128}};
constexpr const char* kExact[] = {"full+kv(k=f32,v=f32)", "full"};

MemoryDriver folded(const Haystack& haystack, std::int64_t chunk, const DriverOptions& options) {
  MemoryDriver driver(wired_shapes(), options);
  const auto step = [](MemoryDriver& state, std::span<const TokenId> part, bool) -> Status {
    wired_step(state, part);
    return {};
  };
  fold_run(driver, std::span<const TokenId>(haystack.tokens), chunk, step).value();
  return driver;
}

std::vector<bool> found(const MemoryDriver& driver, const Haystack& haystack) {
  std::vector<bool> out;
  for (const Needle& needle : haystack.needles) out.push_back(finds(driver, needle));
  return out;
}

// The premise: sum_f cos(n theta_f) is 8 at n = 0 and at most 7.315 anywhere else.
TEST(WiredRetriever, PreviousTokenIsTheClearPeak) {
  double runner_up = -8;
  for (int n = 1; n <= 131072; ++n) {
    double sum = 0;
    for (int band = 0; band < kBands; ++band) sum += std::cos(n * wired_frequency(band));
    runner_up = std::max(runner_up, sum);
  }
  EXPECT_NEAR(runner_up, 7.314, 1e-3);
}

TEST(WiredRetriever, ExactMemoryFindsEveryNeedle) {
  for (const Size& size : kSizes) {
    for (const char* spec : kExact) {
      for (const bool deterministic : {true, false}) {
        const Haystack haystack = make_haystack(size.tokens, size.chunk, size.distances(), 71);
        const DriverOptions options{.spec = spec, .deterministic = deterministic, .n_threads = 2};
        const MemoryDriver driver = folded(haystack, size.chunk, options);
        EXPECT_EQ(found(driver, haystack), std::vector<bool>(5, true))
            << size.tokens << "/" << size.chunk << " " << spec << " " << deterministic;
      }
    }
  }
}

TEST(WiredRetriever, FoldEqualsOnePassBitForBit) {
  const Size size = kSizes[0];
  const Haystack haystack = make_haystack(size.tokens, size.chunk, size.distances(), 72);
  for (const char* spec : kExact) {
    const DriverOptions options{.spec = spec};
    const MemoryDriver fold = folded(haystack, size.chunk, options);
    const MemoryDriver full = folded(haystack, size.tokens, options);
    for (const Needle& needle : haystack.needles) {
      EXPECT_EQ(ask(fold, needle.key), ask(full, needle.key)) << needle.distance;
    }
  }
}

// A needle is found exactly if the question at position T sees its value: sinks, or the last 60
// positions.
TEST(WiredRetriever, StreamingForgetsWhatLeftItsWindow) {
  int n_found = 0;
  int n_lost = 0;
  for (const Size& size : kSizes) {
    for (std::uint64_t seed = 73; seed < 76; ++seed) {
      const Haystack haystack = make_haystack(size.tokens, size.chunk, size.distances(), seed);
      const MemoryDriver driver =
          folded(haystack, size.chunk, {.spec = "sink(4)+window(60,block=1)+kv(k=f32,v=f32)"});
      for (const Needle& needle : haystack.needles) {
        const std::int64_t value_at = needle.place + 1;
        const bool seen = value_at < 4 || value_at > size.tokens - 60;
        EXPECT_EQ(finds(driver, needle), seen) << size.chunk << " d = " << needle.distance;
        ++(seen ? n_found : n_lost);
      }
    }
  }
  EXPECT_GE(n_found, 3);
  EXPECT_GE(n_lost, 36);
}

TEST(WiredRetriever, WithoutTheHaystackNothingIsFound) {
  const Size size = kSizes[0];
  const Haystack haystack = make_haystack(size.tokens, size.chunk, size.distances(), 77);
  const MemoryDriver empty(wired_shapes(), {});
  EXPECT_EQ(found(empty, haystack), std::vector<bool>(5, false));
}

// What each defect still finds at distances {1, N/4, N/2, N-1, N}.
TEST(WiredRetriever, DefectsShowAtSomeDistance) {
  const auto found_with = [](const Size& size, Mutation mutation) {
    const Haystack haystack = make_haystack(size.tokens, size.chunk, size.distances(), 78);
    return found(folded(haystack, size.chunk, {.mutation = mutation}), haystack);
  };
  for (const Size& size : {kSizes[0], kSizes[1]}) {
    const auto previous_only = found_with(size, Mutation::kPreviousChunkOnly);
    EXPECT_EQ(previous_only, (std::vector<bool>{true, false, false, false, false}));
    for (const Mutation mutation : {Mutation::kPositionsRestart, Mutation::kOffsetStuck}) {
      const auto result = found_with(size, mutation);
      EXPECT_FALSE(result[1]) << size.chunk;
      EXPECT_FALSE(result[2]) << size.chunk;
      EXPECT_TRUE(result[3]) << size.chunk;
      EXPECT_TRUE(result[4]) << size.chunk;
    }
    const auto top_left = found_with(size, Mutation::kTopLeftMask);
    EXPECT_NE(top_left, std::vector<bool>(5, true));
    // Stored twice: retrieval alone can not see it; the state invariants and the logits do.
    EXPECT_EQ(found_with(size, Mutation::kDoubleAppend), std::vector<bool>(5, true));
  }
}

}  // namespace
}  // namespace volvelle::testing
