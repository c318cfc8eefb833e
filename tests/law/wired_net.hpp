// A two-layer net with hand-set weights that retrieves the value after a key, at any distance, by
// construction.
//
//   vocabulary  32 fillers, 64 keys, 64 values
//   layer 0     previous-token head: score(i, j) = b1 sum_f cos((i - j - 1) theta_f) over the 8
//   fastest of 16 frequencies of base
//               10000, b1 = 40 (constant query; keys rotated one step further). Its value is the
//               token's key identity, so row j learns which key stood at j - 1.
//   layer 1     content match: query = own key, key = key of the token before, value = own value;
//   b2 = 40, no rotation.
//
// The peak of the first sum is 8, its runner-up 7.314 at any distance up to 131,072 (tested), a
// margin of 27 nats: recall of 100 % is a theorem, so anything less is a defect of the memory. K
// and V dimensions differ on purpose.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "law/memory_driver.hpp"
#include "volvelle/attention/fold.hpp"

namespace volvelle::testing {

inline constexpr TokenId kFillers = 32;
inline constexpr TokenId kWords = 64;  // keys, and values
inline constexpr TokenId kFirstKey = kFillers;
inline constexpr TokenId kFirstValue = kFillers + kWords;
inline constexpr int kBands = 8;
inline constexpr float kSharpness = 40.0f;  // b1 and b2

inline double wired_frequency(int band) { return std::pow(10000.0, -band / 16.0); }

inline std::vector<AttentionShape> wired_shapes() {
  AttentionShape previous_token;
  previous_token.n_heads = 1;
  previous_token.n_kv_heads = 1;
  previous_token.head_dim_k = 2 * kBands;
  previous_token.head_dim_v = kWords;
  AttentionShape match = previous_token;
  match.head_dim_k = kWords;
  return {previous_token, match};
}

/// One row of 64 per token: a one at its number if it is one of the 64 words from `first` on.
inline std::vector<float> one_hot(std::span<const TokenId> tokens, TokenId first, float height) {
  std::vector<float> rows(tokens.size() * kWords, 0.0f);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const TokenId word = tokens[i] - first;
    if (word >= 0 && word < kWords) rows[i * kWords + static_cast<std::size_t>(word)] = height;
  }
  return rows;
}

/// For each token, (height cos, height sin) of (position + shift) theta_f.
inline std::vector<float> wired_phases(const MemoryDriver& driver, std::size_t n, int shift,
                                       float height) {
  std::vector<float> rows;
  for (std::size_t i = 0; i < n; ++i) {
    for (int band = 0; band < kBands; ++band) {
      const double angle = static_cast<double>(driver.position(i) + shift) * wired_frequency(band);
      rows.push_back(height * static_cast<float>(std::cos(angle)));
      rows.push_back(height * static_cast<float>(std::sin(angle)));
    }
  }
  return rows;
}

/// Reads tokens; returns their outputs [n, 64], the weight given to each value.
inline std::vector<float> wired_step(MemoryDriver& driver, std::span<const TokenId> tokens) {
  const std::size_t n = tokens.size();
  driver.begin(tokens);
  std::vector<float> before(n * kWords);
  driver.attend(0, wired_phases(driver, n, 0, kSharpness), wired_phases(driver, n, 1, 1.0f),
                one_hot(tokens, kFirstKey, 1.0f), before);
  std::vector<float> out(n * kWords);
  driver.attend(1, one_hot(tokens, kFirstKey, kSharpness), before,
                one_hot(tokens, kFirstValue, 1.0f), out);
  driver.commit();
  return out;
}

struct Needle {
  std::int64_t distance = 0;  // in chunks: chunk of the question minus chunk of the needle
  std::int64_t place = 0;     // position of the key; the value follows
  TokenId key = 0;
  TokenId value = 0;
};

struct Haystack {
  std::vector<TokenId> tokens;
  std::vector<Needle> needles;
};

/// Fillers, 8 facts at random places, and one needle in chunk N - d for every distance d (N =
/// number of chunks).
inline Haystack make_haystack(std::int64_t n_tokens, std::int64_t chunk,
                              std::span<const std::int64_t> distances, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  Haystack haystack;
  for (std::int64_t i = 0; i < n_tokens; ++i) {
    haystack.tokens.push_back(static_cast<TokenId>(below(kFillers)));
  }
  std::array<TokenId, kWords> keys{};
  for (TokenId i = 0; i < kWords; ++i) keys[static_cast<std::size_t>(i)] = kFirstKey + i;
  std::shuffle(keys.begin(), keys.end(), random);
  auto next_key = keys.begin();
  // Puts (key, value) on two fillers that follow a filler and lie in [begin, end).
  const auto place = [&](std::int64_t begin, std::int64_t end) {
    Needle needle;
    const auto filler = [&](std::int64_t p) {
      return haystack.tokens[static_cast<std::size_t>(p)] < kFillers;
    };
    do {
      needle.place = std::max<std::int64_t>(1, begin + below(end - begin - 1));
    } while (!filler(needle.place - 1) || !filler(needle.place) || !filler(needle.place + 1));
    needle.key = *next_key++;
    needle.value = kFirstValue + static_cast<TokenId>(below(kWords));
    haystack.tokens[static_cast<std::size_t>(needle.place)] = needle.key;
    haystack.tokens[static_cast<std::size_t>(needle.place) + 1] = needle.value;
    return needle;
  };
  for (const std::int64_t distance : distances) {
    const std::int64_t begin = n_tokens - distance * chunk;
    haystack.needles.push_back(place(begin, begin + chunk));
    haystack.needles.back().distance = distance;
  }
  for (int fact = 0; fact < 8; ++fact) place(0, n_tokens);
  return haystack;
}

/// Weights of the 64 values when `key` is asked, in a chunk of its own, on a clone of the memory.
inline std::vector<float> ask(const MemoryDriver& driver, TokenId key) {
  MemoryDriver branch = driver.clone();
  return wired_step(branch, std::span(&key, 1));
}

/// True if the needle's value comes out on top, with more than half of the weight.
inline bool finds(const MemoryDriver& driver, const Needle& needle) {
  const std::vector<float> weights = ask(driver, needle.key);
  const auto best = std::max_element(weights.begin(), weights.end());
  return best - weights.begin() == needle.value - kFirstValue && *best > 0.5f;
}

}  // namespace volvelle::testing
