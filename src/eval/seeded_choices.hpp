// Random choices that are the same on every platform: the generator's bits are used directly (x mod
// n), never a standard distribution, because those differ between standard libraries. The bias of
// the modulus is below n / 2^64.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

namespace volvelle {

class SeededChoices {
 public:
  /// The same for the same seed and numbers.
  SeededChoices(std::uint64_t seed, std::initializer_list<std::int64_t> numbers) {
    std::vector<std::uint32_t> words = {static_cast<std::uint32_t>(seed),
                                        static_cast<std::uint32_t>(seed >> 32)};
    for (const std::int64_t number : numbers) words.push_back(static_cast<std::uint32_t>(number));
    std::seed_seq mixed(words.begin(), words.end());
    random_.seed(mixed);
  }

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t n = items.size(); n > 1; --n) std::swap(items[n - 1], items[below(n)]);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace volvelle
