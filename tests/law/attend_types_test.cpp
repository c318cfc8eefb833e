// Every storage type of keys with every one of values, over shapes and score options, against
// float64, on every instruction set.
//
// A normal run takes settings that cover each pair of values of any two factors; with VOLVELLE_FULL
// set, the full product (some minutes).
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <tuple>

#include "law/attend_case.hpp"

namespace volvelle::law {
namespace {

constexpr std::pair<int, int> kDims[] = {{32, 32},   {64, 64},   {80, 80},   {96, 96},  {100, 100},
                                         {128, 128}, {256, 256}, {192, 128}, {64, 128}, {45, 33}};
constexpr int kGroups[] = {1, 3, 4, 7, 8};
constexpr float kCaps[] = {0.0f, 5.0f};

/// Values of the factors: K type, V type, dims, group, soft cap, learned sinks.
constexpr std::size_t kFactors = 6;
constexpr std::array<std::size_t, kFactors> kLevels = {kElementTypes.size(), kElementTypes.size(),
                                                       std::size(kDims),     std::size(kGroups),
                                                       std::size(kCaps),     2};
using Setting = std::array<std::size_t, kFactors>;

std::vector<Setting> full_product() {
  std::vector<Setting> all = {Setting{}};
  for (std::size_t f = 0; f < kFactors; ++f) {
    std::vector<Setting> longer;
    for (Setting s : all) {
      for (s[f] = 0; s[f] < kLevels[f]; ++s[f]) longer.push_back(s);
    }
    all = std::move(longer);
  }
  return all;
}

/// Settings that cover all pairs, each the best of some random ones that begin with an open pair.
std::vector<Setting> pairwise() {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  const auto pairs_of = [](const Setting& s) {
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) pairs.emplace_back(a, s[a], b, s[b]);
    }
    return pairs;
  };
  std::set<Pair> open;
  for (const Setting& s : full_product()) {
    for (const Pair& pair : pairs_of(s)) open.insert(pair);
  }
  std::mt19937 random(81);
  std::vector<Setting> chosen;
  while (!open.empty()) {
    Setting best{};
    std::size_t most = 0;
    for (int candidate = 0; candidate < 40; ++candidate) {
      Setting s;
      for (std::size_t f = 0; f < kFactors; ++f) s[f] = random() % kLevels[f];
      const auto& [a, at_a, b, at_b] = *open.begin();
      s[a] = at_a;
      s[b] = at_b;
      std::size_t news = 0;
      for (const Pair& pair : pairs_of(s)) news += open.count(pair);
      if (news > most) best = s, most = news;
    }
    for (const Pair& pair : pairs_of(best)) open.erase(pair);
    chosen.push_back(best);
  }
  return chosen;
}

class AttendTypes : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(force_isa("").ok()); }

  static void check_all(const std::vector<Setting>& settings) {
    std::uint32_t seed = 8000;
    for (const Setting& s : settings) {
      AttentionShape shape = shape_of(1, kGroups[s[3]], kDims[s[2]].first, kDims[s[2]].second,
                                      kElementTypes[s[0]], kElementTypes[s[1]]);
      shape.soft_cap = kCaps[s[4]];
      for (const std::int64_t tokens : {1, 3, 6}) {
        expect_reference({.shape = shape,
                          .n_rows = 85 + tokens,
                          .visible = causal(85, tokens),
                          .cuts = {1, 30, 65},
                          .learned_sinks = s[5] == 1,
                          .amplitude = 2.0f,
                          .seed = ++seed});
      }
    }
  }
};

TEST_P(AttendTypes, WithEveryShapeAndOption) {
  check_all(std::getenv("VOLVELLE_FULL") != nullptr ? full_product() : pairwise());
}

// More rows than one softmax block of the decode kernel, several KV heads and threads.
TEST_P(AttendTypes, LongRows) {
  std::uint32_t seed = 8900;
  for (const ElementType type : kElementTypes) {
    for (const std::int64_t tokens : {1, 4, 70}) {
      expect_reference({.shape = shape_of(2, 3, 64, 96, type, type),
                        .n_rows = 600 + tokens,
                        .visible = causal(600, tokens),
                        .seed = ++seed},
                       3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttendTypes, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace volvelle::law
