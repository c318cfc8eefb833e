// 600 seeded random sequences of append, rollback, clone, truncate, release and drop on row stores,
// each compared with a plain list of what every store must contain.
//
// Blocks hold 1,024 rows, so sequences mix single rows with appends that cross block borders. Every
// row of every living store is read back at the end, a sample after each operation.
#include <gtest/gtest.h>

#include <memory>

#include "law/store_reader.hpp"
#include "unit/random_sequence.hpp"

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
using Model = std::vector<ModelRow>;
using Stores = testing::LiveObjects<KvStore, Model>;
using Pair = Stores::Pair;

class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : choice_(seed), stores_(choice_, 4) {
    stores_.add(KvStore(small_layout()), {});
  }

  void step() {
    const std::size_t operation = choice_.below(8);
    if (operation < 3) append(stores_.pick());
    if (operation == 3) roll_back(stores_.pick());
    if (operation == 4) stores_.branch();
    if (operation == 5) truncate(stores_.pick());
    if (operation == 6) release(stores_.pick());
    if (operation == 7) stores_.drop();
  }
  void check() const {
    for (const Pair& pair : stores_.all()) check(pair, 97);
  }
  void finish() const {
    for (const Pair& pair : stores_.all()) check(pair, 1);
  }

 private:
  std::vector<Position> next_positions(const Pair& pair) {
    std::int64_t next = pair.model.empty() ? 0 : pair.model.back().position + 1;
    // Now and then a gap, as after a restored memory.
    if (choice_.one_in(4)) next += choice_.below(std::int64_t{5});
    const std::size_t n = choice_.one_in(3) ? 1 + choice_.below(700) : 1 + choice_.below(6);
    std::vector<Position> positions;
    for (std::size_t i = 0; i < n; ++i) positions.emplace_back(next++);
    return positions;
  }

  void append(Pair& pair) {
    const std::vector<Position> positions = next_positions(pair);
    ASSERT_TRUE(pair.object.begin_append(positions).ok());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      write_known(pair.object, static_cast<std::int64_t>(i), next_id_);
      pair.model.push_back({positions[i].value(), next_id_++});
    }
    pair.object.commit();
  }

  // The rows are written, so that a rollback that left them visible or damaged others would show.
  void roll_back(Pair& pair) {
    const std::vector<Position> positions = next_positions(pair);
    ASSERT_TRUE(pair.object.begin_append(positions).ok());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      write_known(pair.object, static_cast<std::int64_t>(i), next_id_++);
    }
    pair.object.rollback();
  }

  void truncate(Pair& pair) {
    const std::size_t n = choice_.below(pair.model.size() + 1);
    const std::size_t few = choice_.below(std::min<std::size_t>(pair.model.size() + 1, 8));
    const std::size_t keep = choice_.one_in(3) ? n : pair.model.size() - few;
    ASSERT_TRUE(pair.object.truncate(static_cast<std::int64_t>(keep)).ok());
    pair.model.resize(keep);
  }

  void release(Pair& pair) {
    const std::size_t begin = choice_.below(pair.model.size() + 1);
    const std::size_t end = begin + choice_.below(pair.model.size() - begin + 1);
    pair.object.release(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
    for (std::size_t row = begin; row < end; ++row) pair.model[row].released = true;
  }

  static void check_segments(const Pair& pair) {
    std::int64_t end = 0;
    for (const KeyValueSegment& segment : pair.object.segments(LayerIndex(1))) {
      ASSERT_GE(segment.first_row, end);
      ASSERT_GE(segment.n_rows, 1);
      end = segment.first_row + segment.n_rows;
    }
    ASSERT_LE(end, pair.object.n_rows());
  }

  static void check(const Pair& pair, std::size_t stride) {
    const auto positions = pair.object.positions();
    ASSERT_EQ(pair.object.n_rows(), static_cast<std::int64_t>(pair.model.size()));
    ASSERT_EQ(positions.size(), pair.model.size());
    check_segments(pair);
    for (std::size_t row = 0; row < pair.model.size(); row += stride) {
      const ModelRow& expected = pair.model[row];
      ASSERT_EQ(positions[row].value(), expected.position);
      if (expected.released) continue;
      ASSERT_TRUE(holds_known(pair.object, static_cast<std::int64_t>(row), expected.id)) << row;
    }
  }

  testing::Choice choice_;
  Stores stores_;
  std::uint64_t next_id_ = 0;
};

TEST(KvStoreProperty, RandomOperationsAgreeWithAPlainList) {
  testing::run_sequences(600, 30,
                         [](std::uint64_t seed) { return std::make_unique<Sequence>(seed); });
}

}  // namespace
}  // namespace volvelle
