// What property tests share that drive a few live objects through random operations: a seeded
// choice, the live objects each beside a simple model of what it must contain, and the loop.
//
// Objects branch by clone(), and die in any order: whatever one does must not show in another.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace volvelle::testing {

class Choice {
 public:
  explicit Choice(std::uint64_t seed) : random_(seed) {}
  /// In [0, n).
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(below(static_cast<std::size_t>(n)));
  }
  std::size_t below(int n) { return below(static_cast<std::size_t>(n)); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 random_;
};

template <class Object, class Model>
struct Live {
  Object object;
  Model model;
};

/// At least one object is always alive.
template <class Object, class Model>
class LiveObjects {
 public:
  using Pair = Live<Object, Model>;

  LiveObjects(Choice& choice, std::size_t most) : choice_(choice), most_(most) {}

  void add(Object object, Model model) {
    if (pairs_.size() == most_) drop();
    pairs_.push_back({std::move(object), std::move(model)});
  }
  Pair& pick() { return pairs_[choice_.below(pairs_.size())]; }
  void branch() {
    const Pair& trunk = pick();
    add(trunk.object.clone(), trunk.model);
  }
  /// The last one stays.
  void drop() {
    if (pairs_.size() < 2) return;
    pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(choice_.below(pairs_.size())));
  }
  void clear() { pairs_.clear(); }
  std::vector<Pair>& all() { return pairs_; }
  const std::vector<Pair>& all() const { return pairs_; }

 private:
  Choice& choice_;
  std::size_t most_;
  std::vector<Pair> pairs_;
};

/// Sequences 0 to n - 1 of `n_steps` operations: make(seed), then step() and check(), at the end
/// finish(). Stops at the first failure and names the seed.
template <class Make>
void run_sequences(std::uint64_t n, int n_steps, const Make& make) {
  for (std::uint64_t seed = 0; seed < n; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto sequence = make(seed);
    for (int step = 0; step < n_steps && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      sequence->step();
      sequence->check();
    }
    if (!::testing::Test::HasFailure()) sequence->finish();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace volvelle::testing
