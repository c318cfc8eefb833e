// 600 seeded random sequences of append, rollback, clone, truncate, release and drop on row stores,
// each compared with a plain list of what every store must contain.
//
// Blocks hold 1,024 rows, so sequences mix single rows with appends that cross block borders. Every
// row of every living store is read back at the end, a sample after each operation.
#include <gtest/gtest.h>

#include <random>

#include "law/store_reader.hpp"

namespace volvelle {
namespace {

using testing::holds_known;
using testing::small_layout;
using testing::write_known;

struct ModelRow {
  std::int64_t position = 0;
  std::uint64_t id = 0;
  bool released = false;  // may be gone
};

struct Pair {
  KvStore store;
  std::vector<ModelRow> model;
};

class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : random_(seed) {
    pairs_.push_back({KvStore(small_layout()), {}});
  }

  void step() {
    Pair& pair = pairs_[below(pairs_.size())];
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        append(pair);
        break;
      case 3:
        roll_back(pair);
        break;
      case 4:
        if (pairs_.size() < 4) {
          Pair copy{pair.store.clone(), pair.model};
          pairs_.push_back(std::move(copy));
        }
        break;
      case 5:
        truncate(pair);
        break;
      case 6:
        release(pair);
        break;
      default:
        if (pairs_.size() > 1)
          pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(below(pairs_.size())));
    }
  }

  void check_all(std::size_t stride) {
    for (const Pair& pair : pairs_) check(pair, stride);
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  std::vector<Position> next_positions(const Pair& pair) {
    std::int64_t next = pair.model.empty() ? 0 : pair.model.back().position + 1;
    // Now and then a gap, as after a restored memory.
    if (below(4) == 0) next += static_cast<std::int64_t>(below(5));
    const std::size_t n = below(3) == 0 ? 1 + below(700) : 1 + below(6);
    std::vector<Position> positions;
    for (std::size_t i = 0; i < n; ++i) positions.emplace_back(next++);
    return positions;
  }

  void append(Pair& pair) {
    const std::vector<Position> positions = next_positions(pair);
    ASSERT_TRUE(pair.store.begin_append(positions).ok());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      write_known(pair.store, static_cast<std::int64_t>(i), next_id_);
      pair.model.push_back({positions[i].value(), next_id_++});
    }
    pair.store.commit();
  }

  // The rows are written, so that a rollback that left them visible or damaged others would show.
  void roll_back(Pair& pair) {
    const std::vector<Position> positions = next_positions(pair);
    ASSERT_TRUE(pair.store.begin_append(positions).ok());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      write_known(pair.store, static_cast<std::int64_t>(i), next_id_++);
    }
    pair.store.rollback();
  }

  void truncate(Pair& pair) {
    const std::size_t n = below(pair.model.size() + 1);
    const std::size_t keep =
        below(3) == 0 ? n
                      : pair.model.size() - below(std::min<std::size_t>(pair.model.size() + 1, 8));
    ASSERT_TRUE(pair.store.truncate(static_cast<std::int64_t>(keep)).ok());
    pair.model.resize(keep);
  }

  void release(Pair& pair) {
    const std::size_t begin = below(pair.model.size() + 1);
    const std::size_t end = begin + below(pair.model.size() - begin + 1);
    pair.store.release(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
    for (std::size_t row = begin; row < end; ++row) pair.model[row].released = true;
  }

  static void check_segments(const Pair& pair) {
    std::int64_t end = 0;
    for (const KeyValueSegment& segment : pair.store.segments(LayerIndex(1))) {
      ASSERT_GE(segment.first_row, end);
      ASSERT_GE(segment.n_rows, 1);
      end = segment.first_row + segment.n_rows;
    }
    ASSERT_LE(end, pair.store.n_rows());
  }

  static void check(const Pair& pair, std::size_t stride) {
    const auto positions = pair.store.positions();
    ASSERT_EQ(pair.store.n_rows(), static_cast<std::int64_t>(pair.model.size()));
    ASSERT_EQ(positions.size(), pair.model.size());
    check_segments(pair);
    for (std::size_t row = 0; row < pair.model.size(); row += stride) {
      const ModelRow& expected = pair.model[row];
      ASSERT_EQ(positions[row].value(), expected.position);
      if (expected.released) continue;
      ASSERT_TRUE(holds_known(pair.store, static_cast<std::int64_t>(row), expected.id)) << row;
    }
  }

  std::mt19937_64 random_;
  std::vector<Pair> pairs_;
  std::uint64_t next_id_ = 0;
};

TEST(KvStoreProperty, RandomOperationsAgreeWithAPlainList) {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence sequence(seed);
    for (int step = 0; step < 30; ++step) {
      sequence.step();
      sequence.check_all(97);
      if (HasFatalFailure()) return;
    }
    sequence.check_all(1);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace volvelle
