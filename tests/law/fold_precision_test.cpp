// The honest form of "drift does not depend on precision": the drift of a correct fold is rounding,
// so it shrinks with the precision of the arithmetic.
//
//   E = mean |NLL_fold - NLL_one_pass| over all chunks but the first two       E(f32)/E(bf16) <=
//   1e-3, E(f64)/E(f32) <= 1e-6
//
// A plateau that survives higher precision is a bug, and must fail this test. Sums run in an order
// that depends on the chunk (Order::kByShape), else every E is exactly zero. float32 is measured on
// the library's attention as well.
#include <gtest/gtest.h>

#include "law/toy_driver.hpp"

namespace volvelle::testing {
namespace {

constexpr std::int64_t kTokens = 512;

template <class P>
std::vector<double> plain_losses(std::uint64_t seed, std::span<const TokenId> tokens,
                                 std::int64_t chunk) {
  PlainMemory<P> memory(kToyLayers, kToyHeads, Order::kByShape);
  const auto net = make_toy<P>(seed);
  return nll_of_targets(toy_fold(net, memory, tokens, chunk, Order::kByShape), tokens);
}

std::vector<double> our_losses(std::uint64_t seed, std::span<const TokenId> tokens,
                               std::int64_t chunk) {
  const DriverOptions fast{.deterministic = false};
  const auto net = make_toy<Fp32>(seed);
  return nll_of_targets(driver_logits(net, tokens, chunk, fast, Order::kByShape), tokens);
}

// Mean |difference| from depth 2 on.
double drift(const std::vector<double>& fold, const std::vector<double>& full, std::int64_t chunk) {
  double sum = 0;
  const auto begin = static_cast<std::size_t>(2 * chunk);
  for (std::size_t p = begin; p < full.size(); ++p) sum += std::abs(fold[p] - full[p]);
  return sum / static_cast<double>(full.size() - begin);
}

bool ladder_holds(double bf16, double f32, double f64) {
  return f32 <= 1e-3 * bf16 && f64 <= 1e-6 * f32;
}

TEST(FoldPrecision, DriftShrinksWithPrecision) {
  const std::vector<TokenId> tokens = random_tokens(kTokens, 32);
  const auto bf16 = plain_losses<Bf16>(31, tokens, kTokens);
  const auto f32 = plain_losses<Fp32>(31, tokens, kTokens);
  const auto f64 = plain_losses<Fp64>(31, tokens, kTokens);
  const auto ours = our_losses(31, tokens, kTokens);
  for (const std::int64_t chunk : {1, 7, 32}) {
    const double e_bf16 = drift(plain_losses<Bf16>(31, tokens, chunk), bf16, chunk);
    const double e_f32 = drift(plain_losses<Fp32>(31, tokens, chunk), f32, chunk);
    const double e_f64 = drift(plain_losses<Fp64>(31, tokens, chunk), f64, chunk);
    const double e_ours = drift(our_losses(31, tokens, chunk), ours, chunk);
    EXPECT_GT(e_bf16, 1e-4) << chunk;  // there is drift to compare with
    EXPECT_TRUE(ladder_holds(e_bf16, e_f32, e_f64)) << e_bf16 << " " << e_f32 << " " << e_f64;
    EXPECT_TRUE(ladder_holds(e_bf16, e_ours, e_f64)) << e_bf16 << " " << e_ours << " " << e_f64;
  }
}

// Published plateaus of 0.0647 (bf16) and 0.0629 (float32) are a ratio of 0.97: not rounding.
TEST(FoldPrecision, AStructuralPlateauFails) {
  EXPECT_FALSE(ladder_holds(0.0647, 0.0629, 0.0629));
  EXPECT_FALSE(ladder_holds(0.0647, 0.97 * 0.0647, 0.0));
  EXPECT_TRUE(ladder_holds(1e-2, 0.0, 0.0));
}

// And a fold with a real defect shows one: stored twice, in our float32, against bf16 rounding
// noise.
TEST(FoldPrecision, ADefectFails) {
  const std::vector<TokenId> tokens = random_tokens(kTokens, 32);
  const auto net = make_toy<Fp32>(31);
  const DriverOptions twice{.mutation = Mutation::kDoubleAppend};
  const auto full = nll_of_targets(driver_logits(net, tokens, kTokens), tokens);
  const auto wrong = nll_of_targets(driver_logits(net, tokens, 32, twice), tokens);
  const auto bf16 = plain_losses<Bf16>(31, tokens, kTokens);
  const double e_bf16 = drift(plain_losses<Bf16>(31, tokens, 32), bf16, 32);
  EXPECT_FALSE(ladder_holds(e_bf16, drift(wrong, full, 32), 0.0));
}

// bf16 over 4,088 targets: mean |dNLL| <= 0.05 and no bias: |mean dNLL| <= 0.005.
TEST(FoldPrecision, BFloat16IsUnbiased) {
  double sum = 0;
  double sum_abs = 0;
  std::size_t n = 0;
  for (std::uint64_t text = 0; text < 8; ++text) {
    const std::vector<TokenId> tokens = random_tokens(kTokens, 40 + text);
    const auto full = plain_losses<Bf16>(31, tokens, kTokens);
    const auto fold = plain_losses<Bf16>(31, tokens, text % 2 == 0 ? 1 : 32);
    for (std::size_t p = 0; p < full.size(); ++p, ++n) {
      sum += fold[p] - full[p];
      sum_abs += std::abs(fold[p] - full[p]);
    }
  }
  EXPECT_GE(n, 4000u);
  EXPECT_LE(sum_abs / static_cast<double>(n), 0.05);
  EXPECT_LE(std::abs(sum) / static_cast<double>(n), 0.005);
}

}  // namespace
}  // namespace volvelle::testing
