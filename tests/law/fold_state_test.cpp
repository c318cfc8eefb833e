// The state of a fold: its invariants after every step, splitting as an associative operation,
// resuming from clones, and the order of per-position losses.
//
// Everything is compared bit for bit (deterministic attention), with one pass over the whole text.
#include <gtest/gtest.h>

#include "law/toy_driver.hpp"

namespace volvelle::testing {
namespace {

constexpr std::int64_t kTokens = 512;

class FoldState : public ::testing::Test {
 protected:
  std::span<const TokenId> part(std::int64_t begin, std::int64_t end) const {
    return std::span(tokens_).subspan(static_cast<std::size_t>(begin),
                                      static_cast<std::size_t>(end - begin));
  }
  std::vector<float> step(MemoryDriver& driver, std::int64_t begin, std::int64_t end) const {
    return toy_step(net_, driver, part(begin, end), Order::kFixed);
  }
  std::vector<float> logits_of(std::int64_t begin, std::int64_t end) const {
    return {full_.begin() + begin * static_cast<std::int64_t>(kToyVocab),
            full_.begin() + end * static_cast<std::int64_t>(kToyVocab)};
  }
  // Folds over the given borders, e.g. {0, 5, 512}.
  std::vector<float> fold_over(const std::vector<std::int64_t>& borders) const {
    MemoryDriver driver = toy_driver();
    std::vector<float> logits;
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      const std::vector<float> rows = step(driver, borders[i], borders[i + 1]);
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    return logits;
  }

  const ToyNet<Fp32> net_ = make_toy<Fp32>(21);
  const std::vector<TokenId> tokens_ = random_tokens(kTokens, 22);
  const std::vector<float> full_ = driver_logits(net_, tokens_, kTokens);
};

TEST_F(FoldState, InvariantsAfterEveryStep) {
  MemoryDriver driver = toy_driver();
  std::vector<float> old_rows;
  std::vector<const std::byte*> old_places;
  std::int64_t length = 0;
  for (const std::int64_t size : {1, 31, 7, 100, 1, 1, 64, 200}) {
    step(driver, length, length + size);
    const std::int64_t before = length;
    length += size;
    EXPECT_EQ(state_defect(driver.memory(), length), "");
    EXPECT_EQ(driver.memory().length(), driver.n_consumed());
    // Old rows keep their contents and their place.
    EXPECT_EQ(state_rows(driver.memory().groups().front().store(), 0, before), old_rows);
    std::vector<const std::byte*> places;
    for (const KeyValueSegment& segment : driver.memory().segments(LayerIndex(2))) {
      places.push_back(segment.k);
    }
    for (std::size_t i = 0; i < old_places.size(); ++i) EXPECT_EQ(places[i], old_places[i]);
    old_rows = state_rows(driver.memory().groups().front().store(), 0, length);
    old_places = places;
  }
}

TEST_F(FoldState, DoubleAppendBreaksTheInvariants) {
  MemoryDriver driver = toy_driver({.mutation = Mutation::kDoubleAppend});
  step(driver, 0, 32);
  EXPECT_EQ(state_defect(driver.memory(), driver.n_consumed()), "");
  step(driver, 32, 64);
  EXPECT_NE(state_defect(driver.memory(), driver.n_consumed()), "");
}

TEST_F(FoldState, SplittingIsAssociative) {
  EXPECT_EQ(fold_over({0, 100, 300, kTokens}), full_);  // [a, b, c]
  EXPECT_EQ(fold_over({0, 300, kTokens}), full_);       // [a + b, c]
  EXPECT_EQ(fold_over({0, 100, kTokens}), full_);       // [a, b + c]
  std::vector<std::int64_t> single;
  for (std::int64_t border = 0; border <= kTokens; ++border) single.push_back(border);
  EXPECT_EQ(fold_over(single), full_);
  std::mt19937_64 random(23);
  for (int trial = 0; trial < 8; ++trial) {
    std::vector<std::int64_t> borders = {0};
    while (borders.back() < kTokens) {
      const auto size = 1 + static_cast<std::int64_t>(random() % 90);
      borders.push_back(std::min(kTokens, borders.back() + size));
    }
    EXPECT_EQ(fold_over(borders), full_) << "trial " << trial;
  }
}

TEST_F(FoldState, ResumingFromACloneChangesNothing) {
  MemoryDriver driver = toy_driver();
  step(driver, 0, 200);
  MemoryDriver resumed = driver.clone();
  EXPECT_EQ(step(resumed, 200, 330), logits_of(200, 330));
  EXPECT_EQ(step(resumed, 330, kTokens), logits_of(330, kTokens));
  EXPECT_EQ(step(driver, 200, kTokens), logits_of(200, kTokens));
}

// Other tokens fed to a clone must not reach the original, nor the other way round.
TEST_F(FoldState, ClonesDoNotAlias) {
  MemoryDriver driver = toy_driver();
  step(driver, 0, 200);
  const std::vector<float> rows = state_rows(driver.memory().groups().front().store(), 0, 200);
  MemoryDriver clone = driver.clone();
  const std::vector<TokenId> other = random_tokens(150, 24);
  const std::vector<float> branch = toy_step(net_, clone, other, Order::kFixed);
  EXPECT_EQ(driver.memory().length(), 200);
  EXPECT_EQ(state_rows(driver.memory().groups().front().store(), 0, 200), rows);
  EXPECT_EQ(step(driver, 200, 300), logits_of(200, 300));

  // The branch equals a run that never was a branch.
  std::vector<TokenId> joined(tokens_.begin(), tokens_.begin() + 200);
  joined.insert(joined.end(), other.begin(), other.end());
  const std::vector<float> alone = driver_logits(net_, joined, 350);
  EXPECT_EQ(branch, std::vector<float>(alone.begin() + 200 * static_cast<std::ptrdiff_t>(kToyVocab),
                                       alone.end()));
  EXPECT_EQ(state_rows(clone.memory().groups().front().store(), 0, 200), rows);
  EXPECT_NE(branch, logits_of(200, 350));
}

TEST_F(FoldState, TakingTokensBackChangesNothing) {
  MemoryDriver driver = toy_driver();
  step(driver, 0, 200);
  toy_step(net_, driver, std::span<const TokenId>(random_tokens(90, 25)), Order::kFixed);
  ASSERT_TRUE(driver.truncate(200).ok());
  EXPECT_EQ(step(driver, 200, kTokens), logits_of(200, kTokens));
}

// Losses as a chunked reader computes them: the first target of a chunk is scored with the last
// logits of the chunk before. `from_own_row` is the mistake of scoring it with the chunk's own
// first row instead.
std::vector<double> stitched_nll(const ToyNet<Fp32>& net, std::span<const TokenId> tokens,
                                 std::int64_t chunk, bool from_own_row) {
  MemoryDriver driver = toy_driver();
  std::vector<double> out;
  std::vector<float> previous;
  const auto read = [&](MemoryDriver& state, std::span<const TokenId> piece, bool) -> Status {
    const std::vector<float> logits = toy_step(net, state, piece, Order::kFixed);
    const std::span<const float> rows(logits);
    if (!previous.empty()) {
      const auto row = from_own_row ? rows.first(kToyVocab) : std::span<const float>(previous);
      out.push_back(nll(row, piece[0]));
    }
    for (std::size_t i = 0; i + 1 < piece.size(); ++i) {
      out.push_back(nll(rows.subspan(i * kToyVocab, kToyVocab), piece[i + 1]));
    }
    previous.assign(logits.end() - static_cast<std::ptrdiff_t>(kToyVocab), logits.end());
    return {};
  };
  fold_run(driver, tokens, chunk, read).value();
  return out;
}

TEST_F(FoldState, LossesAreStitchedInOrder) {
  const std::vector<double> expected = nll_of_targets(full_, tokens_);
  ASSERT_EQ(expected.size(), static_cast<std::size_t>(kTokens - 1));
  for (const std::int64_t chunk : {1, 32, 100, 511}) {
    EXPECT_EQ(stitched_nll(net_, tokens_, chunk, false), expected) << chunk;
    EXPECT_NE(stitched_nll(net_, tokens_, chunk, true), expected) << chunk;
  }
}

}  // namespace
}  // namespace volvelle::testing
