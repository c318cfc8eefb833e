// The row store: layout of blocks, append, clone, truncate, release, adopted blocks, and what each
// refuses.
//
// Rows have known pseudo-random contents, read back element by element through the segments
// (tests/law/store_reader.hpp).
#include "volvelle/memory/kv_store.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "law/store_reader.hpp"

namespace volvelle {
namespace {

using testing::holds_known;
using testing::small_layout;
using testing::write_known;

std::vector<Position> range(std::int64_t begin, std::int64_t end) {
  std::vector<Position> out;
  for (std::int64_t p = begin; p < end; ++p) out.emplace_back(p);
  return out;
}

// Appends n rows with ids first_id, first_id + 1, ... at the next positions.
void append(KvStore& store, std::int64_t n, std::uint64_t first_id) {
  const std::int64_t begin = store.n_rows();
  ASSERT_TRUE(store.begin_append(range(begin, begin + n)).ok());
  for (std::int64_t i = 0; i < n; ++i) {
    write_known(store, i, first_id + static_cast<std::uint64_t>(i));
  }
  store.commit();
}

void expect_rows(const KvStore& store, std::int64_t begin, std::int64_t end,
                 std::uint64_t first_id) {
  for (std::int64_t row = begin; row < end; ++row) {
    ASSERT_TRUE(holds_known(store, row, first_id + static_cast<std::uint64_t>(row - begin)))
        << "row " << row;
  }
}

TEST(RowBlock, PlanesAreAlignedAndDoNotOverlap) {
  StoreLayout layout;
  layout.layers = {{3, 5, 7}, {1, 1, 1}, {2, 64, 80}};
  layout.k_type = ElementType::kF16;
  layout.v_type = ElementType::kF32;
  const std::int64_t capacity = 13;
  const auto block = allocate_row_block(layout, capacity);
  ASSERT_TRUE(block.ok());
  std::byte* previous_end = nullptr;
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    const RowBlock::LayerPlanes& planes = (*block)->layers[l];
    const auto check = [&](std::byte* plane, std::size_t stride, std::size_t head) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plane) % 64, 0u);
      EXPECT_EQ(stride % 64, 0u);
      EXPECT_GE(stride, head);
      EXPECT_GE(plane, previous_end);
      const auto n_heads = static_cast<std::size_t>(layout.layers[l].n_kv_heads);
      std::fill(plane, plane + n_heads * stride, std::byte{0xAB});  // all of it can be written
      previous_end = plane + n_heads * stride;
    };
    check(planes.k, planes.k_head_stride,
          capacity * row_bytes(layout.k_type, layout.layers[l].head_dim_k));
    check(planes.v, planes.v_head_stride,
          capacity * row_bytes(layout.v_type, layout.layers[l].head_dim_v));
  }
  EXPECT_EQ(layout.bytes_per_token(), 3u * (5 * 2 + 7 * 4) + (2 + 4) + 2 * (64 * 2 + 80 * 4));
}

TEST(RowBlock, RefusesNonsense) {
  const auto code = [](StoreLayout layout, std::int64_t capacity) {
    return allocate_row_block(layout, capacity).error().code;
  };
  EXPECT_EQ(code(small_layout(), 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(small_layout(), -1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({}, 8), ErrorCode::kInvalidArgument);
  StoreLayout no_heads = small_layout();
  no_heads.layers[1].n_kv_heads = -1;
  EXPECT_EQ(code(no_heads, 8), ErrorCode::kInvalidArgument);
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(code(small_layout(), huge), ErrorCode::kResourceExhausted);       // overflows
  EXPECT_EQ(code(small_layout(), huge / 64), ErrorCode::kResourceExhausted);  // no such machine
}

TEST(KvStore, AppendsOverBlockBorders) {
  KvStore store(small_layout());
  append(store, KvStore::kBlockRows - 3, 0);
  append(store, 2 * KvStore::kBlockRows, KvStore::kBlockRows - 3);
  EXPECT_EQ(store.n_rows(), 3 * KvStore::kBlockRows - 3);
  expect_rows(store, 0, store.n_rows(), 0);
  EXPECT_EQ(store.segments(LayerIndex(0)).size(), 3u);
  EXPECT_EQ(store.row_bytes_used(),
            static_cast<std::size_t>(store.n_rows()) * store.layout().bytes_per_token());
  EXPECT_GE(store.reserved_bytes(), store.row_bytes_used());
}

TEST(KvStore, PendingRowsAreInSegmentsButNotCounted) {
  KvStore store(small_layout());
  append(store, 5, 0);
  ASSERT_TRUE(store.begin_append(range(5, 8)).ok());
  EXPECT_EQ(store.n_rows(), 5);
  EXPECT_EQ(store.positions().size(), 5u);
  EXPECT_EQ(store.segments(LayerIndex(1)).back().n_rows, 8);
  EXPECT_FALSE(store.begin_append(range(8, 9)).ok());
  EXPECT_FALSE(store.truncate(0).ok());
  EXPECT_THROW((void)store.clone(), std::logic_error);
  write_known(store, 2, 77);
  EXPECT_TRUE(holds_known(store, 7, 77));
  store.rollback();
  EXPECT_EQ(store.n_rows(), 5);
  EXPECT_EQ(store.segments(LayerIndex(1)).back().n_rows, 5);
  append(store, 3, 100);
  expect_rows(store, 0, 5, 0);
  expect_rows(store, 5, 8, 100);
}

TEST(KvStore, RefusesBadPositions) {
  KvStore store(small_layout());
  EXPECT_FALSE(store.begin_append({}).ok());
  EXPECT_FALSE(store.begin_append(std::vector{Position(-1)}).ok());
  EXPECT_FALSE(store.begin_append(std::vector{Position(3), Position(3)}).ok());
  ASSERT_TRUE(store.begin_append(std::vector{Position(3), Position(9)}).ok());
  store.commit();
  EXPECT_FALSE(store.begin_append(std::vector{Position(9)}).ok());
  EXPECT_TRUE(store.begin_append(std::vector{Position(10)}).ok());
  store.rollback();
  EXPECT_EQ(store.positions().back(), Position(9));
}

TEST(KvStore, CloneSharesRowsAndNeverWritesIntoThem) {
  KvStore original(small_layout());
  append(original, 10, 0);
  KvStore copy = original.clone();
  EXPECT_EQ(copy.segments(LayerIndex(0))[0].k, original.segments(LayerIndex(0))[0].k);
  append(copy, 5, 100);
  append(original, 7, 200);
  EXPECT_EQ(original.n_rows(), 17);
  expect_rows(original, 0, 10, 0);
  expect_rows(original, 10, 17, 200);
  expect_rows(copy, 0, 10, 0);
  expect_rows(copy, 10, 15, 100);
}

TEST(KvStore, TruncatedCloneDoesNotOverwriteTheOriginal) {
  KvStore original(small_layout());
  append(original, 10, 0);
  KvStore copy = original.clone();
  ASSERT_TRUE(copy.truncate(4).ok());
  append(copy, 6, 100);
  expect_rows(original, 0, 10, 0);
  expect_rows(copy, 0, 4, 0);
  expect_rows(copy, 4, 10, 100);
}

TEST(KvStore, SoleOwnerExtendsInPlace) {
  KvStore store(small_layout());
  append(store, 10, 0);
  const std::byte* const k = store.segments(LayerIndex(0))[0].k;
  {
    const KvStore copy = store.clone();
    EXPECT_EQ(copy.n_rows(), 10);
  }
  append(store, 10, 10);
  ASSERT_EQ(store.segments(LayerIndex(0)).size(), 1u);
  EXPECT_EQ(store.segments(LayerIndex(0))[0].k, k);
  ASSERT_TRUE(store.truncate(0).ok());
  append(store, 3, 50);
  EXPECT_EQ(store.segments(LayerIndex(0))[0].k, k);
  expect_rows(store, 0, 3, 50);
}

TEST(KvStore, TruncateChecksItsArgument) {
  KvStore store(small_layout());
  append(store, 10, 0);
  EXPECT_FALSE(store.truncate(-1).ok());
  EXPECT_FALSE(store.truncate(11).ok());
  EXPECT_TRUE(store.truncate(10).ok());
  EXPECT_EQ(store.n_rows(), 10);
  ASSERT_TRUE(store.truncate(0).ok());
  EXPECT_EQ(store.row_bytes_used(), 0u);
  EXPECT_TRUE(store.positions().empty());
  EXPECT_TRUE(store.segments(LayerIndex(0)).empty());
}

TEST(KvStore, ReleaseFreesOnlyWholeBlocks) {
  constexpr std::int64_t b = KvStore::kBlockRows;
  KvStore store(small_layout());
  append(store, 3 * b + 5, 0);
  const std::size_t all = store.reserved_bytes();
  store.release(4, 2 * b - 1);  // touches two blocks, covers none
  EXPECT_EQ(store.reserved_bytes(), all);
  store.release(4, 2 * b);
  EXPECT_EQ(store.reserved_bytes(), all / 4 * 3);
  EXPECT_EQ(store.segments(LayerIndex(0)).size(), 3u);
  EXPECT_EQ(store.n_rows(), 3 * b + 5);  // row indices stay
  expect_rows(store, 0, b, 0);
  EXPECT_FALSE(holds_known(store, b, b));
  expect_rows(store, 2 * b, 3 * b + 5, 2 * b);
  append(store, 4, 3 * b + 5);
  expect_rows(store, 2 * b, 3 * b + 9, 2 * b);
}

// After releasing the last rows too, an append must not continue an earlier block.
TEST(KvStore, AppendAfterReleasingTheTail) {
  constexpr std::int64_t b = KvStore::kBlockRows;
  KvStore store(small_layout());
  append(store, 10, 0);
  const KvStore holder = store.clone();  // so that a second block begins at row 10
  append(store, b, 10);
  store.release(10, 10 + b);
  ASSERT_EQ(store.segments(LayerIndex(0)).size(), 1u);
  append(store, 3, 500);
  expect_rows(store, 0, 10, 0);
  expect_rows(store, 10 + b, 13 + b, 500);
  expect_rows(holder, 0, 10, 0);
}

TEST(KvStore, ReleaseDoesNotTouchClones) {
  constexpr std::int64_t b = KvStore::kBlockRows;
  KvStore store(small_layout());
  append(store, 3 * b, 0);
  const KvStore copy = store.clone();
  store.release(0, 3 * b);
  EXPECT_EQ(store.reserved_bytes(), 0u);
  expect_rows(copy, 0, 3 * b, 0);
  append(store, 2, 900);
  expect_rows(store, 3 * b, 3 * b + 2, 900);
}

TEST(KvStore, AdoptsFinishedRowsReadOnly) {
  KvStore writer(small_layout());
  const auto block = *allocate_row_block(small_layout(), 16);
  ASSERT_TRUE(writer.adopt(block, {}).ok());
  append(writer, 6, 0);
  block->writable = false;

  KvStore store(small_layout());
  const std::vector<Position> positions = {Position(0), Position(1), Position(7),
                                           Position(8), Position(9), Position(10)};
  ASSERT_TRUE(store.adopt(block, positions).ok());
  // Rows have the numbers of their positions, those between are forgotten.
  EXPECT_EQ(store.n_rows(), 11);
  expect_rows(store, 0, 2, 0);
  EXPECT_FALSE(holds_known(store, 2, 2));
  expect_rows(store, 7, 11, 2);
  EXPECT_EQ(store.row_bytes_used(), 6 * small_layout().bytes_per_token());
  ASSERT_TRUE(store.begin_append(std::vector{Position(11)}).ok());
  write_known(store, 0, 60);
  store.commit();
  expect_rows(store, 7, 11, 2);
  expect_rows(store, 11, 12, 60);
  EXPECT_EQ(store.segments(LayerIndex(0)).size(), 3u);
  // A cut inside the read-only block does not make it writable.
  ASSERT_TRUE(store.truncate(9).ok());
  append(store, 1, 70);
  expect_rows(store, 7, 9, 2);
  expect_rows(store, 9, 10, 70);
  expect_rows(writer, 0, 6, 0);
}

TEST(KvStore, AdoptedRowsMayEndBeforeTheLastToken) {
  KvStore store(small_layout());
  const auto block = *allocate_row_block(small_layout(), 2);
  block->writable = false;
  ASSERT_TRUE(store.adopt(block, range(0, 2), 50).ok());
  EXPECT_EQ(store.n_rows(), 50);
  append(store, 3, 80);
  expect_rows(store, 50, 53, 80);
  EXPECT_EQ(store.segments(LayerIndex(1)).size(), 2u);
}

TEST(KvStore, AdoptRefusesWhatDoesNotFit) {
  const auto block = *allocate_row_block(small_layout(), 4);
  const auto refused = [&](std::shared_ptr<RowBlock> rows, std::vector<Position> positions) {
    KvStore store(small_layout());
    return !store.adopt(std::move(rows), positions).ok() && store.n_rows() == 0;
  };
  EXPECT_TRUE(refused(nullptr, {}));
  EXPECT_TRUE(refused(block, range(0, 5)));
  EXPECT_TRUE(refused(block, {Position(1), Position(1)}));
  EXPECT_TRUE(refused(block, {Position(-2), Position(1)}));
  StoreLayout other = small_layout();
  other.layers[1] = {};  // as the block of another group of layers
  EXPECT_TRUE(refused(*allocate_row_block(other, 4), range(0, 2)));
  other.layers.pop_back();
  EXPECT_TRUE(refused(*allocate_row_block(other, 4), range(0, 2)));
  KvStore used(small_layout());
  append(used, 1, 0);
  EXPECT_FALSE(used.adopt(block, {}).ok());
  block->writable = false;
  EXPECT_TRUE(refused(block, {}));
}

// Rows meant for a file must not silently go elsewhere.
TEST(KvStore, FileBlockIsFilledInPlaceOrFails) {
  const auto block = *allocate_row_block(small_layout(), 8);
  block->anonymous = false;
  KvStore store(small_layout());
  ASSERT_TRUE(store.adopt(block, {}).ok());
  append(store, 3, 0);
  EXPECT_EQ(store.segments(LayerIndex(0))[0].k, block->layers[0].k);
  EXPECT_EQ(store.reserved_bytes(), 0u);
  {
    const KvStore copy = store.clone();
    EXPECT_FALSE(store.begin_append(range(3, 4)).ok());
    EXPECT_EQ(store.n_rows(), 3);
  }
  append(store, 5, 3);
  EXPECT_EQ(store.segments(LayerIndex(0)).size(), 1u);
  append(store, 2, 8);  // full: what follows is not part of the file
  EXPECT_EQ(store.segments(LayerIndex(0)).size(), 2u);
  expect_rows(store, 0, 10, 0);
}

}  // namespace
}  // namespace volvelle
