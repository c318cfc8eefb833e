// A fold over chunks computes what one pass over the whole text computes.
//
// Bit for bit where the arithmetic of a row does not depend on its neighbours (plain loops, and
// attend() in its deterministic mode), whatever the chunks, threads, storage type and blocks are;
// within rounding where kernels choose their order by shape. The expected values come from plain
// loops in float64 (plain_memory.hpp), not from the library.
#include <gtest/gtest.h>

#include "law/toy_driver.hpp"

namespace volvelle::testing {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kChunks[] = {1, 7, 32, 100, 128, kTokens};

class Fold : public ::testing::Test {
 protected:
  const ToyNet<Fp32> net_ = make_toy<Fp32>(11);
  const std::vector<TokenId> tokens_ = random_tokens(kTokens, 12);
};

template <class P>
std::vector<typename P::Value> plain_logits(std::span<const TokenId> tokens, std::int64_t chunk,
                                            Order order, bool halves = false) {
  PlainMemory<P> memory(kToyLayers, kToyHeads, order);
  if (halves) memory.store_halves();
  return toy_fold(make_toy<P>(11), memory, tokens, chunk, order);
}

template <class P>
void expect_bitwise_with_plain_loops(std::span<const TokenId> tokens) {
  const auto full = plain_logits<P>(tokens, kTokens, Order::kFixed);
  for (const std::int64_t chunk : kChunks) {
    EXPECT_EQ(plain_logits<P>(tokens, chunk, Order::kFixed), full) << chunk;
  }
}

TEST_F(Fold, PlainLoopsAreBitwiseEqual) {
  expect_bitwise_with_plain_loops<Fp64>(tokens_);
  expect_bitwise_with_plain_loops<Fp32>(tokens_);
  expect_bitwise_with_plain_loops<Bf16>(tokens_);
}

// Logits and every stored K and V element.
TEST_F(Fold, DeterministicAttentionIsBitwiseEqual) {
  for (const char* types : {"full+kv(k=f32,v=f32)", "full", "full+kv(k=f16,v=f32)"}) {
    const DriverOptions options{.spec = types};
    MemoryDriver full = toy_driver(options);
    const std::vector<float> expected = toy_fold(net_, full, tokens_, kTokens);
    const std::vector<float> rows = state_rows(full.memory().groups().front().store(), 0, kTokens);
    for (const std::int64_t chunk : kChunks) {
      MemoryDriver driver = toy_driver(options);
      EXPECT_EQ(toy_fold(net_, driver, tokens_, chunk), expected) << types << " chunk " << chunk;
      EXPECT_EQ(state_rows(driver.memory().groups().front().store(), 0, kTokens), rows)
          << types << " " << chunk;
    }
  }
}

TEST_F(Fold, ThreadsDoNotChangeABit) {
  const std::vector<float> expected = driver_logits(net_, tokens_, kTokens);
  for (const int n_threads : {2, 3}) {
    const DriverOptions options{.n_threads = n_threads};
    EXPECT_EQ(driver_logits(net_, tokens_, 100, options), expected) << n_threads;
  }
}

// A clone held at every chunk border forces a new block of memory there, so the rows lie in many
// pieces.
TEST_F(Fold, BlocksOfMemoryDoNotChangeABit) {
  const std::vector<float> expected = driver_logits(net_, tokens_, kTokens);
  MemoryDriver driver = toy_driver();
  std::vector<MemoryDriver> holders;
  std::vector<float> logits;
  for (std::int64_t begin = 0; begin < kTokens; begin += 37) {
    const auto size = static_cast<std::size_t>(std::min<std::int64_t>(37, kTokens - begin));
    const auto part = std::span(tokens_).subspan(static_cast<std::size_t>(begin), size);
    const std::vector<float> rows = toy_step(net_, driver, part, Order::kFixed);
    logits.insert(logits.end(), rows.begin(), rows.end());
    holders.push_back(driver.clone());
  }
  EXPECT_GT(driver.memory().segments(LayerIndex(0)).size(), 10u);
  EXPECT_EQ(logits, expected);
}

// Independent float64 expectation. Measured 1.5e-5 with f32 rows, as between two orders of the same
// float32 sums; allowed 1e-4. With f16 rows the reference rounds its rows to halves too, but a few
// roundings near ties go the other way, each an error of 2^-11 of one element: measured 1.2e-3,
// allowed 1e-2. Every mutation gives more than 0.1.
TEST_F(Fold, AgreesWithFloat64) {
  const auto expected = plain_logits<Fp64>(tokens_, kTokens, Order::kFixed);
  const auto expected_halves = plain_logits<Fp64>(tokens_, kTokens, Order::kFixed, true);
  for (const bool deterministic : {true, false}) {
    for (const std::int64_t chunk : kChunks) {
      DriverOptions options{.deterministic = deterministic, .n_threads = 2};
      const double f32 = max_difference(driver_logits(net_, tokens_, chunk, options), expected);
      EXPECT_LE(f32, 1e-4) << chunk;
      options.spec = "full";
      const double f16 =
          max_difference(driver_logits(net_, tokens_, chunk, options), expected_halves);
      EXPECT_LE(f16, 1e-2) << chunk;
    }
  }
}

// Kernels that choose their order of summation by shape: float64 1e-11, float32 5e-5 at a logit
// scale of about 8.
TEST_F(Fold, KernelsThatChooseTheirOrder) {
  const auto full64 = plain_logits<Fp64>(tokens_, kTokens, Order::kByShape);
  const auto full32 = plain_logits<Fp32>(tokens_, kTokens, Order::kByShape);
  const DriverOptions fast{.deterministic = false, .n_threads = 2};
  const auto ours = driver_logits(net_, tokens_, kTokens, fast, Order::kByShape);
  double worst64 = 0;
  for (const std::int64_t chunk : kChunks) {
    const auto fold64 = plain_logits<Fp64>(tokens_, chunk, Order::kByShape);
    worst64 = std::max(worst64, max_difference(fold64, full64));
    const auto fold32 = plain_logits<Fp32>(tokens_, chunk, Order::kByShape);
    EXPECT_LE(max_difference(fold32, full32), 5e-5) << chunk;
    const auto fold = driver_logits(net_, tokens_, chunk, fast, Order::kByShape);
    EXPECT_LE(max_difference(fold, ours), 5e-5) << chunk;
  }
  EXPECT_LE(worst64, 1e-11);
  EXPECT_GT(worst64, 0.0);  // the orders do differ
}

// Least-squares slope of y against its index.
double slope(const std::vector<double>& y) {
  const auto n = static_cast<double>(y.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto x = static_cast<double>(i);
    sx += x;
    sy += y[i];
    sxx += x * x;
    sxy += x * y[i];
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

constexpr double kGrowthLimit = 1e-5;

// Mean |logit difference| of each chunk, over 63 transitions in float32: no trend.
TEST_F(Fold, DriftDoesNotGrowWithDepth) {
  constexpr std::size_t chunk = 8;
  const DriverOptions fast{.deterministic = false};
  const auto full = driver_logits(net_, tokens_, kTokens, fast, Order::kByShape);
  const auto fold = driver_logits(net_, tokens_, chunk, fast, Order::kByShape);
  std::vector<double> drift;
  for (std::size_t begin = 0; begin < full.size(); begin += chunk * kToyVocab) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + chunk * kToyVocab; ++i) {
      sum += std::abs(static_cast<double>(full[i]) - static_cast<double>(fold[i]));
    }
    drift.push_back(sum / static_cast<double>(chunk * kToyVocab));
  }
  ASSERT_EQ(drift.size(), 64u);
  EXPECT_GT(*std::max_element(drift.begin(), drift.end()), 0.0);  // there is something to measure
  EXPECT_LE(std::abs(slope(drift)) * 63, kGrowthLimit);
  // The check itself: a drift that grew by a millionth per chunk would not pass.
  for (std::size_t d = 0; d < drift.size(); ++d) drift[d] += 1e-6 * static_cast<double>(d);
  EXPECT_GT(std::abs(slope(drift)) * 63, kGrowthLimit);
}

}  // namespace
}  // namespace volvelle::testing
