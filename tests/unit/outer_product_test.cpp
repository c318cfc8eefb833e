// Outer-product memories against a token loop in float64, closed forms, and the capacity laws of
// random keys; chunks, merges, antisymmetry, and states after errors.
//
// Tolerances: float64 1e-12. float32 in the state's norm 4 * 2^-24 sqrt(min(T, 1 / (1 - decay))) +
// 1e-7: one rounding per write, remembered for the memory's horizon, in random directions. The
// delta rule also amplifies by the triangular solve, at most 4 times here.
#include "associative/outer_product.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/associative_support.hpp"

namespace volvelle {
namespace {

using namespace volvelle::testing;

constexpr int kTokens = 150;

template <class T>
OuterProductMemory<T> make(const OuterProductConfig& config) {
  auto memory = OuterProductMemory<T>::create(config);
  EXPECT_TRUE(memory.ok());
  return std::move(*memory);
}

OuterProductConfig config_of(int key_dim, int value_dim, WriteRule rule, double decay,
                             double rate) {
  OuterProductConfig config;
  config.key_dim = key_dim, config.value_dim = value_dim;
  config.rule = rule, config.decay = decay, config.rate = rate;
  return config;
}

template <class T>
struct Tokens {
  std::vector<T> queries, keys, values;
};

template <class T>
Tokens<T> tokens_of(std::uint64_t seed, const OuterProductConfig& config, int n, int group = 1) {
  std::mt19937_64 random(seed);
  return {normal_rows<T>(random, n * group, config.key_dim),
          unit_rows<T>(random, n, config.key_dim), normal_rows<T>(random, n, config.value_dim)};
}

struct Reference {
  std::vector<double> state, reads, read_scale;  // read_scale: |q| |S| of each output
};

double dot(const double* a, const double* b, int dim) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += a[i] * b[i];
  return sum;
}

/// One write, straight from the definition.
void write_one(std::vector<double>& state, const OuterProductConfig& c, double decay, double rate,
               const double* k, const double* v) {
  std::vector<double> u(v, v + c.value_dim);
  if (c.rule == WriteRule::kDelta)
    for (int i = 0; i < c.value_dim; ++i)
      u[static_cast<std::size_t>(i)] -=
          dot(&state[static_cast<std::size_t>(i * c.key_dim)], k, c.key_dim);
  for (int i = 0; i < c.value_dim; ++i)
    for (int j = 0; j < c.key_dim; ++j) {
      double& s = state[static_cast<std::size_t>(i * c.key_dim + j)];
      double term = u[static_cast<std::size_t>(i)] * k[j];
      if (c.rule == WriteRule::kWedge) term -= k[i] * v[j];
      s = decay * s + rate * term;
    }
}

template <class T>
Reference token_loop(const OuterProductConfig& c, const Tokens<T>& tokens, int group = 1) {
  const std::vector<double> q(tokens.queries.begin(), tokens.queries.end());
  const std::vector<double> k(tokens.keys.begin(), tokens.keys.end());
  const std::vector<double> v(tokens.values.begin(), tokens.values.end());
  Reference r;
  r.state.assign(static_cast<std::size_t>(c.key_dim * c.value_dim), 0.0);
  for (int t = 0; t < std::ssize(k) / c.key_dim; ++t) {
    write_one(r.state, c, static_cast<T>(c.decay), static_cast<T>(c.rate),
              &k[static_cast<std::size_t>(t * c.key_dim)],
              &v[static_cast<std::size_t>(t * c.value_dim)]);
    const double norm = std::sqrt(dot(r.state.data(), r.state.data(), c.key_dim * c.value_dim));
    for (int g = 0; g < group; ++g) {
      const double* query = &q[static_cast<std::size_t>((t * group + g) * c.key_dim)];
      for (int i = 0; i < c.value_dim; ++i) {
        r.reads.push_back(dot(&r.state[static_cast<std::size_t>(i * c.key_dim)], query, c.key_dim));
        r.read_scale.push_back(norm * std::sqrt(dot(query, query, c.key_dim)));
      }
    }
  }
  return r;
}

template <class T>
double tolerance(const OuterProductConfig& config) {
  if (std::is_same_v<T, double>) return 1e-12;
  const double horizon =
      std::min<double>(kTokens, 1.0 / (1.0 - std::min(config.decay, 1.0 - 1e-9)));
  const double bound = 4.0 * 0x1p-24 * std::sqrt(horizon) + 1e-7;
  return config.rule == WriteRule::kDelta ? 4.0 * bound : bound;
}

/// Feeds tokens in calls of `call` tokens and compares states and reads with the token loop.
template <class T>
void expect_token_loop(OuterProductConfig config, int chunk, int call, int group) {
  config.chunk = chunk;
  const Tokens<T> tokens = tokens_of<T>(11, config, kTokens, group);
  const Reference reference = token_loop(config, tokens, group);
  auto memory = make<T>(config);
  std::vector<T> reads(reference.reads.size());
  for (int t = 0; t < kTokens; t += call) {
    const int n = std::min(call, kTokens - t);
    const std::size_t row = static_cast<std::size_t>(group * config.value_dim);
    ASSERT_TRUE(memory
                    .write_and_read(part(tokens.queries, config.key_dim * group, t, n),
                                    part(tokens.keys, config.key_dim, t, n),
                                    part(tokens.values, config.value_dim, t, n),
                                    std::span(reads).subspan(static_cast<std::size_t>(t) * row,
                                                             static_cast<std::size_t>(n) * row))
                    .ok());
  }
  EXPECT_EQ(memory.written(), kTokens);
  EXPECT_LE(relative_error(memory.state(), reference.state), tolerance<T>(config));
  double worst = 0;
  for (std::size_t i = 0; i < reads.size(); ++i)
    worst = std::max(worst, std::abs(reads[i] - reference.reads[i]) / reference.read_scale[i]);
  EXPECT_LE(worst, tolerance<T>(config));
}

template <class T>
void expect_token_loop_for_all_chunks(const OuterProductConfig& config) {
  SCOPED_TRACE(std::string(to_string(config.rule)) + ", decay " + std::to_string(config.decay) +
               ", rate " + std::to_string(config.rate));
  for (const int chunk : {1, 7, 64}) expect_token_loop<T>(config, chunk, kTokens, 1);
  for (const int call : {1, 7, 64}) expect_token_loop<T>(config, 64, call, 2);
}

TEST(OuterProduct, ChunksEqualTheTokenLoop) {
  for (const WriteRule rule : {WriteRule::kOuter, WriteRule::kDelta, WriteRule::kWedge})
    for (const double decay : {0.5, 0.9, 0.995, 1.0})
      for (const double rate : {0.05, 1.0}) {
        const int value_dim = rule == WriteRule::kWedge ? 12 : 17;
        const auto config = config_of(12, value_dim, rule, decay, rate);
        expect_token_loop_for_all_chunks<double>(config);
        expect_token_loop_for_all_chunks<float>(config);
      }
}

TEST(OuterProduct, ReadsAreTheDecayedSumOverAllPairs) {
  const auto config = config_of(8, 5, WriteRule::kOuter, 0.9, 0.3);
  const auto tokens = tokens_of<double>(3, config, 90);
  auto memory = make<double>(config);
  std::vector<double> reads(90 * 5);
  ASSERT_TRUE(memory.write_and_read(tokens.queries, tokens.keys, tokens.values, reads).ok());
  std::vector<double> expected(reads.size());
  for (int t = 0; t < 90; ++t)
    for (int i = 0; i <= t; ++i) {
      const double weight =
          0.3 * std::pow(0.9, t - i) *
          dot(part(tokens.queries, 8, t, 1).data(), part(tokens.keys, 8, i, 1).data(), 8);
      for (int j = 0; j < 5; ++j)
        expected[static_cast<std::size_t>(t * 5 + j)] +=
            weight * tokens.values[static_cast<std::size_t>(i * 5 + j)];
    }
  EXPECT_LE(relative_error(reads, expected), 1e-13);
}

// A chunk-mean update would hold 32^2 pairs and give the same row for every key.
TEST(OuterProduct, AChunkOfOrthonormalKeysHoldsItsPairsAndNoOthers) {
  std::mt19937_64 random(5);
  const auto keys = orthonormal_rows(random, 32), values = orthonormal_rows(random, 32);
  auto memory = make<double>(config_of(32, 32, WriteRule::kOuter, 1.0, 1.0));
  ASSERT_TRUE(memory.write(keys, values).ok());
  std::vector<double> reads(32 * 32);
  ASSERT_TRUE(memory.read(keys, reads).ok());
  EXPECT_LE(relative_error(reads, values), 1e-14);
  int n_pairs = 0;
  for (int i = 0; i < 32; ++i)
    for (int j = 0; j < 32; ++j)
      n_pairs +=
          std::abs(dot(part(reads, 32, i, 1).data(), part(values, 32, j, 1).data(), 32)) > 1e-12;
  EXPECT_EQ(n_pairs, 32);
}

// Written, then read: token t finds exactly the tokens 0..t, itself included.
TEST(OuterProduct, AReadSeesAllWritesUpToItsOwn) {
  constexpr int n = 20;
  std::vector<double> unit(n * n), ones(n * n, 1.0), reads(n * n);
  for (int i = 0; i < n; ++i) unit[static_cast<std::size_t>(i * n + i)] = 1.0;
  for (const int chunk : {1, 6, 64}) {
    auto config = config_of(n, n, WriteRule::kOuter, 1.0, 1.0);
    config.chunk = chunk;
    auto memory = make<double>(config);
    ASSERT_TRUE(memory.write_and_read(ones, unit, unit, reads).ok());
    for (int t = 0; t < n; ++t)
      for (int j = 0; j < n; ++j)
        EXPECT_EQ(reads[static_cast<std::size_t>(t * n + j)], j <= t ? 1.0 : 0.0);
  }
}

TEST(OuterProduct, LaterTokensDoNotChangeEarlierReads) {
  for (const WriteRule rule : {WriteRule::kOuter, WriteRule::kDelta, WriteRule::kWedge}) {
    const auto config = config_of(9, 9, rule, 0.99, 0.5);
    auto tokens = tokens_of<float>(8, config, 40);
    std::vector<float> before(40 * 9), after(40 * 9);
    ASSERT_TRUE(make<float>(config)
                    .write_and_read(tokens.queries, tokens.keys, tokens.values, before)
                    .ok());
    tokens.keys[23 * 9 + 2] += 0.25f;
    tokens.values[23 * 9 + 4] += 1.0f;
    ASSERT_TRUE(
        make<float>(config).write_and_read(tokens.queries, tokens.keys, tokens.values, after).ok());
    EXPECT_TRUE(same_bits(part(before, 9, 0, 23), part(after, 9, 0, 23)));
    EXPECT_FALSE(same_bits(part(before, 9, 23, 1), part(after, 9, 23, 1)));
  }
}

TEST(OuterProduct, DecaysOncePerWrite) {
  for (const int chunk : {1, 7, 64}) {
    auto config = config_of(3, 2, WriteRule::kOuter, 0.9, 0.5);
    config.chunk = chunk;
    auto memory = make<double>(config);
    const std::vector<double> key = {1, -2, 3}, value = {5, 7};
    ASSERT_TRUE(memory.write(key, value).ok());
    ASSERT_TRUE(memory.write(std::vector<double>(37 * 3), std::vector<double>(37 * 2)).ok());
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t j = 0; j < 3; ++j) {
        const double expected = std::pow(0.9, 37) * 0.5 * value[i] * key[j];
        EXPECT_NEAR(memory.state()[i * 3 + j], expected, 1e-13 * std::abs(expected));
      }
  }
}

// A decay of 0.9995 kept in bfloat16 would be exactly 1.
TEST(OuterProduct, ALongHorizonSurvivesFloat32) {
  auto memory = make<float>(config_of(1, 1, WriteRule::kOuter, 0.9995, 1.0));
  ASSERT_TRUE(memory.write(std::vector<float>{1}, std::vector<float>{1}).ok());
  const std::vector<float> zeros(4000);
  ASSERT_TRUE(memory.write(zeros, zeros).ok());
  // float32's nearest to 0.9995 is off by up to 2^-25: 4,000 times that in the logarithm.
  EXPECT_NEAR(memory.state()[0], std::pow(0.9995, 4000), 0.1353 * 4000 * 0x1p-25);
}

// Reading the oldest of N random keys: relative squared error (decay^-2(N-1) - 1) / ((1 - decay^2)
// D), which is (N - 1) / D without decay. 400 runs, one of which spreads by about a quarter: 5 % is
// 4 sigma.
TEST(OuterProduct, CrosstalkFollowsItsMeanSquareLaw) {
  constexpr int kDim = 64, kRuns = 400;
  std::mt19937_64 random(17);
  for (const double decay : {1.0, 0.995})
    for (const int n : {8, 32, 64, 128}) {
      double sum = 0;
      for (int run = 0; run < kRuns; ++run) {
        auto memory = make<double>(config_of(kDim, kDim, WriteRule::kOuter, decay, 0.05));
        const auto keys = unit_rows<double>(random, n, kDim),
                   values = unit_rows<double>(random, n, kDim);
        ASSERT_TRUE(memory.write(keys, values).ok());
        std::vector<double> read(kDim);
        ASSERT_TRUE(memory.read(part(keys, kDim, 0, 1), read).ok());
        std::vector<double> stored(values.begin(), values.begin() + kDim);
        for (double& x : stored) x *= 0.05 * std::pow(decay, n - 1);
        sum += std::pow(relative_error(read, stored), 2);
      }
      const double law =
          decay == 1.0 ? (n - 1.0) / kDim
                       : (std::pow(decay, -2.0 * (n - 1)) - 1.0) / ((1.0 - decay * decay) * kDim);
      EXPECT_NEAR(sum / kRuns, law, 0.05 * law) << "decay " << decay << ", n " << n;
    }
}

// 16 orthonormal value codes, 128 random keys in 64 dimensions: 0.829 by a Gaussian model of the
// noise.
TEST(OuterProduct, RecallOfValueCodesAboveCapacity) {
  constexpr int kDim = 64, kCodes = 16, kWrites = 128, kRuns = 60;
  std::mt19937_64 random(23);
  int correct = 0;
  for (int run = 0; run < kRuns; ++run) {
    const auto keys = unit_rows<double>(random, kWrites, kDim);
    std::vector<double> values(kWrites * kCodes);  // in the basis of the codes
    std::vector<int> code(kWrites);
    for (int i = 0; i < kWrites; ++i) {
      code[static_cast<std::size_t>(i)] = static_cast<int>(random() % kCodes);
      values[static_cast<std::size_t>(i * kCodes + code[static_cast<std::size_t>(i)])] = 1.0;
    }
    auto memory = make<double>(config_of(kDim, kCodes, WriteRule::kOuter, 1.0, 1.0));
    ASSERT_TRUE(memory.write(keys, values).ok());
    std::vector<double> reads(kWrites * kCodes);
    ASSERT_TRUE(memory.read(keys, reads).ok());
    for (int i = 0; i < kWrites; ++i) {
      const auto row = part(reads, kCodes, i, 1);
      correct += std::ranges::max_element(row) - row.begin() == code[static_cast<std::size_t>(i)];
    }
  }
  EXPECT_NEAR(correct / static_cast<double>(kWrites * kRuns), 0.83, 0.02);
}

TEST(OuterProduct, TheDeltaRuleOverwritesAndTheOuterRuleAdds) {
  const std::vector<double> keys = {0.6, 0.8, 0.6, 0.8}, values = {1, 2, 3, -4, 5, 7};
  for (const int chunk : {1, 64}) {
    auto delta_config = config_of(2, 3, WriteRule::kDelta, 1.0, 1.0);
    auto outer_config = config_of(2, 3, WriteRule::kOuter, 1.0, 1.0);
    delta_config.chunk = outer_config.chunk = chunk;
    auto delta = make<double>(delta_config), outer = make<double>(outer_config);
    ASSERT_TRUE(delta.write(keys, values).ok() && outer.write(keys, values).ok());
    std::vector<double> read(3);
    ASSERT_TRUE(delta.read(part(keys, 2, 1, 1), read).ok());
    EXPECT_LE(relative_error(read, std::vector<double>{-4, 5, 7}), 1e-15);
    ASSERT_TRUE(outer.read(part(keys, 2, 1, 1), read).ok());
    EXPECT_LE(relative_error(read, std::vector<double>{-3, 7, 10}), 1e-15);
  }
}

// Taking every prediction from the state at the chunk's start is another rule: 4 % off at rate
// 0.05.
TEST(OuterProduct, TheDeltaChunkIsNotTheChunkStartShortcut) {
  const auto config = config_of(32, 32, WriteRule::kDelta, 0.995, 0.05);
  const auto tokens = tokens_of<double>(4, config, 64);
  auto memory = make<double>(config);
  auto shortcut_config = config;
  shortcut_config.rule = WriteRule::kOuter;
  auto shortcut = make<double>(shortcut_config);
  for (int t = 0; t < 64; t += 32) {
    const auto keys = part(tokens.keys, 32, t, 32), values = part(tokens.values, 32, t, 32);
    std::vector<double> errors(32 * 32);
    ASSERT_TRUE(shortcut.read(keys, errors).ok());
    for (std::size_t i = 0; i < errors.size(); ++i) errors[i] = values[i] - errors[i];
    ASSERT_TRUE(memory.write(keys, values).ok() && shortcut.write(keys, errors).ok());
  }
  EXPECT_GT(relative_error(shortcut.state(), memory.state()), 0.01);
}

TEST(OuterProduct, TheDeltaRuleRefusesKeysThatMakeItDiverge) {
  auto config = config_of(2, 1, WriteRule::kDelta, 0.5, 1.0);
  const std::vector<double> value = {1};
  auto memory = make<double>(config);
  EXPECT_TRUE(memory.write(std::vector<double>{1.2, 0}, value).ok());
  const auto refused = memory.write(std::vector<double>{1.2, 0.3}, value);  // |k|^2 = 1.53
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(memory.written(), 1);
  config.key_scale = KeyScale::kUnit;
  EXPECT_TRUE(make<double>(config).write(std::vector<double>{30, 40}, value).ok());
}

TEST(OuterProduct, KeysAreScaledAsConfigured) {
  auto config = config_of(4, 1, WriteRule::kOuter, 1.0, 1.0);
  const std::vector<double> key = {4, 0, 0, 3}, value = {1};
  config.key_scale = KeyScale::kUnit;
  auto unit = make<double>(config);
  ASSERT_TRUE(unit.write(key, value).ok());
  EXPECT_NEAR(unit.state()[0], 0.8, 1e-13);
  config.key_scale = KeyScale::kClip;  // length 5 over sqrt(4)
  auto clip = make<double>(config);
  ASSERT_TRUE(clip.write(key, value).ok());
  EXPECT_NEAR(clip.state()[3], 3 / 2.5, 1e-15);
  ASSERT_TRUE(clip.write(std::vector<double>{0.1, 0, 0, 0}, value).ok());
  EXPECT_NEAR(clip.state()[0], 4 / 2.5 + 0.1, 1e-15);
}

template <class T>
void expect_antisymmetric(const OuterProductMemory<T>& memory, std::size_t dim) {
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = 0; j < dim; ++j)
      ASSERT_EQ(memory.state()[i * dim + j], -memory.state()[j * dim + i]) << i << ", " << j;
}

TEST(OuterProduct, TheWedgeStateIsAntisymmetricInEveryBit) {
  for (const int dim : {1, 5, 13, 32}) {
    for (const int chunk : {1, 7, 64}) {
      auto config = config_of(dim, dim, WriteRule::kWedge, 0.93, 0.37);
      config.chunk = chunk;
      const auto tokens = tokens_of<float>(31, config, 203);
      auto first = make<float>(config), second = make<float>(config);
      ASSERT_TRUE(
          first.write(part(tokens.keys, dim, 0, 130), part(tokens.values, dim, 0, 130)).ok());
      expect_antisymmetric(first, static_cast<std::size_t>(dim));
      ASSERT_TRUE(
          second.write(part(tokens.keys, dim, 130, 73), part(tokens.values, dim, 130, 73)).ok());
      ASSERT_TRUE(first.merge(second).ok());
      expect_antisymmetric(first, static_cast<std::size_t>(dim));
    }
  }
  const auto config = config_of(3, 4, WriteRule::kWedge, 0.9, 0.1);
  EXPECT_EQ(OuterProductMemory<float>::create(config).error().code, ErrorCode::kInvalidArgument);
}

TEST(OuterProduct, MergedSegmentsEqualOneMemoryInAnyBracketing) {
  for (const WriteRule rule : {WriteRule::kOuter, WriteRule::kWedge})
    for (const double decay : {0.9, 0.995, 1.0}) {
      const auto config = config_of(10, 10, rule, decay, 0.2);
      const auto tokens = tokens_of<double>(41, config, 100);
      auto whole = make<double>(config);
      ASSERT_TRUE(whole.write(tokens.keys, tokens.values).ok());
      const auto segment = [&](int begin, int n) {
        auto memory = make<double>(config);
        EXPECT_TRUE(
            memory.write(part(tokens.keys, 10, begin, n), part(tokens.values, 10, begin, n)).ok());
        return memory;
      };
      auto left = segment(0, 13);
      ASSERT_TRUE(left.merge(segment(13, 60)).ok() && left.merge(segment(73, 0)).ok() &&
                  left.merge(segment(73, 27)).ok());
      auto middle = segment(13, 60), right = segment(0, 13);
      ASSERT_TRUE(middle.merge(segment(73, 27)).ok() && right.merge(middle).ok());
      EXPECT_EQ(left.written(), 100);
      EXPECT_LE(relative_error(left.state(), whole.state()), 1e-13);
      EXPECT_LE(relative_error(right.state(), whole.state()), 1e-13);
    }
}

TEST(OuterProduct, MergeIsRefusedWhereTheRuleHasNone) {
  auto delta = make<double>(config_of(2, 2, WriteRule::kDelta, 0.9, 0.5));
  EXPECT_EQ(delta.merge(delta).error().code, ErrorCode::kUnsupported);
  auto config = config_of(2, 2, WriteRule::kOuter, 0.9, 0.5);
  auto outer = make<double>(config);
  config.decay = 0.8;
  EXPECT_EQ(outer.merge(make<double>(config)).error().code, ErrorCode::kMismatch);
  config.decay = 0.9;
  config.chunk = 5;
  EXPECT_TRUE(outer.merge(make<double>(config)).ok());
}

TEST(OuterProduct, ErrorsLeaveTheStateAsItWas) {
  for (const WriteRule rule : {WriteRule::kOuter, WriteRule::kDelta, WriteRule::kWedge}) {
    auto config = config_of(4, 4, rule, 0.9, 0.5);
    config.chunk = 3;
    const auto tokens = tokens_of<float>(51, config, 10);
    auto memory = make<float>(config);
    ASSERT_TRUE(memory.write(tokens.keys, tokens.values).ok());
    const std::vector<float> before(memory.state().begin(), memory.state().end());
    std::vector<float> reads(40);
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      auto broken = tokens;
      broken.queries[39] = bad;
      EXPECT_EQ(memory.read(broken.queries, reads).error().code, ErrorCode::kNumeric);
      EXPECT_EQ(
          memory.write_and_read(broken.queries, tokens.keys, tokens.values, reads).error().code,
          ErrorCode::kNumeric);
      broken.keys[38] = bad;
      EXPECT_EQ(memory.write(broken.keys, tokens.values).error().code, ErrorCode::kNumeric);
      broken.values[37] = bad;
      EXPECT_EQ(memory.write(tokens.keys, broken.values).error().code, ErrorCode::kNumeric);
    }
    EXPECT_EQ(memory.write(part(tokens.keys, 4, 0, 2), part(tokens.values, 4, 0, 1)).error().code,
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(memory.write(part(tokens.keys, 1, 0, 3), {}).error().code,
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(memory.read(tokens.queries, std::span(reads).first(39)).error().code,
              ErrorCode::kInvalidArgument);
    EXPECT_TRUE(same_bits<float>(memory.state(), before));
    EXPECT_EQ(memory.written(), 10);
  }
}

TEST(OuterProduct, AnOverflowInALaterChunkUndoesTheWholeCall) {
  auto config = config_of(1, 1, WriteRule::kOuter, 1.0, 1.0);
  config.chunk = 2;
  auto memory = make<float>(config);
  ASSERT_TRUE(memory.write(std::vector<float>{1}, std::vector<float>{3}).ok());
  const std::vector<float> keys(6, 1.0f), values(6, 1e38f);
  EXPECT_EQ(memory.write(keys, values).error().code, ErrorCode::kNumeric);
  EXPECT_EQ(memory.state()[0], 3.0f);
  EXPECT_EQ(memory.written(), 1);
}

TEST(OuterProduct, ZeroTokensChangeNothing) {
  const auto config = config_of(3, 2, WriteRule::kDelta, 0.9, 0.5);
  const auto tokens = tokens_of<double>(61, config, 5);
  auto memory = make<double>(config);
  ASSERT_TRUE(memory.write(tokens.keys, tokens.values).ok());
  const std::vector<double> before(memory.state().begin(), memory.state().end());
  EXPECT_TRUE(memory.write({}, {}).ok());
  EXPECT_TRUE(memory.write_and_read({}, {}, {}, {}).ok());
  EXPECT_TRUE(memory.read({}, {}).ok());
  EXPECT_EQ(memory.write_and_read(tokens.queries, {}, {}, {}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(same_bits<double>(memory.state(), before));
  EXPECT_EQ(memory.written(), 5);
}

TEST(OuterProduct, ARestoredMemoryGoesOnWithEqualBits) {
  for (const WriteRule rule : {WriteRule::kOuter, WriteRule::kDelta, WriteRule::kWedge}) {
    const auto config = config_of(6, 6, rule, 0.97, 0.4);
    const auto tokens = tokens_of<float>(71, config, 50);
    auto memory = make<float>(config), copy = make<float>(config);
    ASSERT_TRUE(memory.write(part(tokens.keys, 6, 0, 33), part(tokens.values, 6, 0, 33)).ok());
    ASSERT_TRUE(copy.restore(memory.state(), memory.written()).ok());
    for (auto* each : {&memory, &copy})
      ASSERT_TRUE(each->write(part(tokens.keys, 6, 33, 17), part(tokens.values, 6, 33, 17)).ok());
    EXPECT_TRUE(same_bits(memory.state(), copy.state()));
    EXPECT_EQ(copy.written(), 50);
    copy.reset();
    EXPECT_TRUE(same_bits<float>(copy.state(), std::vector<float>(36)));
    EXPECT_EQ(copy.written(), 0);
  }
}

TEST(OuterProduct, DamagedStatesAreNotRestored) {
  auto memory = make<double>(config_of(2, 2, WriteRule::kWedge, 0.9, 0.5));
  const auto code = [&](std::vector<double> state, std::int64_t written) {
    return memory.restore(state, written).error().code;
  };
  EXPECT_EQ(code({0, 1, -1}, 1), ErrorCode::kMismatch);
  EXPECT_EQ(code({0, 1, std::nan(""), 0}, 1), ErrorCode::kNumeric);
  EXPECT_EQ(code({0, 1, std::nextafter(-1.0, 0.0), 0}, 1), ErrorCode::kCorrupt);
  EXPECT_EQ(code({1, 1, -1, 0}, 1), ErrorCode::kCorrupt);
  EXPECT_EQ(code({0, 1, -1, 0}, 0), ErrorCode::kCorrupt);
  EXPECT_EQ(code({0, 1, -1, 0}, -1), ErrorCode::kCorrupt);
  EXPECT_TRUE(memory.restore(std::vector<double>{0, 1, -1, 0}, 1).ok());
}

TEST(OuterProduct, ConfigurationsOutOfRangeAreRefused) {
  const auto code = [](int key_dim, double decay, double rate, int chunk) {
    auto config = config_of(key_dim, 2, WriteRule::kOuter, decay, rate);
    config.chunk = chunk;
    const auto memory = OuterProductMemory<float>::create(config);
    return memory.ok() ? ErrorCode::kEngine : memory.error().code;
  };
  EXPECT_EQ(code(2, 1.0, 1.0, 1), ErrorCode::kEngine);  // none
  for (const int dim : {0, -1, 1 << 20})
    EXPECT_EQ(code(dim, 0.9, 1, 8), ErrorCode::kInvalidArgument);
  for (const double decay : {0.0, -0.5, 1.01, std::nan("")})
    EXPECT_EQ(code(2, decay, 1, 8), ErrorCode::kInvalidArgument);
  for (const double rate : {0.0, -1.0, std::nan(""), HUGE_VAL})
    EXPECT_EQ(code(2, 0.9, rate, 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(2, 0.9, 1, 0), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace volvelle
