// The index as part of a memory: when it is made, how it follows commits, truncation, branches and
// files. Rows and queries are random; what matters is which tiles there are and that they are the
// codes of the memory's own rows.
#include "volvelle/memory/memory_index.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "memory/memory_file_index.hpp"
#include "unit/memory_file_support.hpp"

namespace volvelle {
namespace {

using testing::Parts;

/// Two served layers, a windowed one between them.
StoreLayout layout() {
  return {{{2, 32, 32}, {1, 16, 16, 64}, {1, 48, 16}}, ElementType::kF16, ElementType::kF16};
}

class IndexedMemory {
 public:
  explicit IndexedMemory(const std::string& spec = "full+topk(k=16)")
      : memory_(ContextMemory::create(layout(), parse_memory_spec(spec).value()).value()) {}

  /// Feeds n tokens; rows depend on position and `text` alone.
  void feed(std::int64_t n, std::uint32_t text = 0, std::int64_t chunk = 128) {
    while (n > 0) {
      const std::int64_t size = std::min(n, chunk);
      ASSERT_TRUE(begin(size, text));
      ASSERT_TRUE(memory_.extend_index().ok());
      memory_.commit();
      n -= size;
    }
  }
  bool begin(std::int64_t n, std::uint32_t text) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(n), static_cast<TokenId>(text));
    if (!memory_.begin(tokens).ok()) return false;
    std::normal_distribution<float> normal;
    std::vector<float> row(2 * 48);
    std::vector<float> queries(static_cast<std::size_t>(n) * 4 * 48);
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      for (std::int64_t i = 0; i < n; ++i) {
        std::mt19937 random(static_cast<std::uint32_t>(memory_.length() + i) * 7 + text * 1000003 +
                            static_cast<std::uint32_t>(layer));
        for (float& x : row) x = normal(random);
        memory_.write_k(LayerIndex(layer), i, row.data());
        for (float& x : row) x = normal(random);
        memory_.write_v(LayerIndex(layer), i, row.data());
        for (int x = 0; x < 4 * 48; ++x)
          queries[static_cast<std::size_t>(i * 4 * 48 + x)] = normal(random);
      }
      const LayerShape& shape = memory_.layout().layers[static_cast<std::size_t>(layer)];
      AttendTask task;
      task.shape = {.n_heads = shape.n_kv_heads * 2,
                    .n_kv_heads = shape.n_kv_heads,
                    .head_dim_k = shape.head_dim_k,
                    .head_dim_v = shape.head_dim_v};
      task.visible = memory_.visible(LayerIndex(layer));
      task.q = queries.data();
      task.q_token_stride = 4 * 48;
      task.q_head_stride = shape.head_dim_k;
      memory_.observe(LayerIndex(layer), task);
    }
    return true;
  }
  const MemoryIndex& index() const { return *memory_.index(); }
  std::int64_t tiles(std::int64_t layer) const {
    return index().layer(LayerIndex(layer)).n_tiles();
  }
  ContextMemory& memory() { return memory_; }

 private:
  ContextMemory memory_;
};

TEST(MemoryIndex, IsMadeOnceThereIsEnoughAndThenFollows) {
  IndexedMemory m;
  EXPECT_FALSE(m.index().serves(LayerIndex(1)));  // it has a window of its own
  m.feed(kMinIndexedTokens - 1);
  ASSERT_TRUE(m.memory().prepare_index(2).ok());
  EXPECT_FALSE(m.index().ready());
  m.feed(1);
  ASSERT_TRUE(m.memory().prepare_index(2).ok());
  EXPECT_TRUE(m.index().ready());
  EXPECT_EQ(m.index().made_at(), kMinIndexedTokens);
  EXPECT_EQ(m.tiles(0), kMinIndexedTokens / kCodeTile);
  EXPECT_EQ(m.tiles(1), 0);
  EXPECT_EQ(m.index().query_bytes(), 0u);  // of no use until it is made again
  m.feed(63, 0, 1);
  EXPECT_EQ(m.tiles(2), 16);
  m.feed(1, 0, 1);
  EXPECT_EQ(m.tiles(2), 17);
}

TEST(MemoryIndex, IsMadeAgainWhenTheMemoryHasGrownByHalf) {
  IndexedMemory m;
  m.feed(1100);
  ASSERT_TRUE(m.memory().prepare_index(1).ok());
  EXPECT_EQ(m.index().made_at(), 1100);
  // At least as many positions later as queries are kept of.
  m.feed(kQueryPositions - 1);
  ASSERT_TRUE(m.memory().prepare_index(1).ok());
  EXPECT_EQ(m.index().made_at(), 1100);
  m.feed(1);
  ASSERT_TRUE(m.memory().prepare_index(1).ok());
  EXPECT_EQ(m.index().made_at(), 1100 + kQueryPositions);
  EXPECT_EQ(m.tiles(0), (1100 + kQueryPositions) / kCodeTile);
  m.feed(1061);
  ASSERT_TRUE(m.memory().prepare_index(1).ok());
  EXPECT_EQ(m.index().made_at(), 1100 + kQueryPositions);
  m.feed(1);
  ASSERT_TRUE(m.memory().prepare_index(1).ok());
  EXPECT_EQ(m.index().made_at(), 2124 + 1062);
}

TEST(MemoryIndex, RollbackAndTruncateCutTilesThatAreNoLongerCovered) {
  IndexedMemory m;
  m.feed(1200);
  ASSERT_TRUE(m.memory().prepare_index(1).ok());
  ASSERT_TRUE(m.begin(100, 0));
  ASSERT_TRUE(m.memory().extend_index().ok());
  EXPECT_EQ(m.tiles(0), 20);
  m.memory().rollback();
  EXPECT_EQ(m.tiles(0), 18);
  ASSERT_TRUE(m.memory().truncate(1100).ok());
  EXPECT_EQ(m.tiles(0), 17);
  // Other rows behind the cut get codes of their own.
  const std::vector<std::byte> kept(m.index().layer(LayerIndex(0)).tile(16),
                                    m.index().layer(LayerIndex(0)).tile(17 - 1) + 64);
  m.feed(200, 5);
  EXPECT_EQ(m.tiles(0), 20);
  IndexedMemory other;
  other.feed(1100);
  other.feed(200, 5);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), m.index().layer(LayerIndex(0)).tile(16)));
}

TEST(MemoryIndex, RowsThatAreWrittenAgainHaveAnotherDither) {
  IndexedMemory memory("full+topk(k=16,cert=dither)");
  memory.feed(1300);
  ASSERT_TRUE(memory.memory().prepare_index(1).ok());
  const auto salt = [&](std::int64_t tile) {
    return *memory.index().layer(LayerIndex(0)).head_tile(0, tile).key_salt;
  };
  const std::uint64_t kept = salt(10);
  const std::uint64_t cut = salt(18);
  EXPECT_NE(kept, cut);
  EXPECT_NE(salt(3), *memory.index().layer(LayerIndex(0)).head_tile(1, 3).key_salt);
  EXPECT_NE(salt(3), *memory.index().layer(LayerIndex(2)).head_tile(0, 3).key_salt);
  ASSERT_TRUE(memory.memory().truncate(1160).ok());
  memory.feed(140);
  EXPECT_EQ(salt(10), kept);
  EXPECT_NE(salt(18), cut);
}

TEST(MemoryIndex, AdoptedCodesServeFromTheFirstTileAndAreNotMadeAgain) {
  IndexedMemory source;
  source.feed(2048);
  ASSERT_TRUE(source.memory().prepare_index(1).ok());
  IndexedMemory memory;
  ASSERT_TRUE(memory.memory().adopt_codes(source.memory()).ok());
  EXPECT_EQ(memory.index().position_limit(), 2048);
  memory.feed(130, 1);
  EXPECT_EQ(memory.tiles(0), 2);
  EXPECT_EQ(memory.tiles(1), 0);  // has a window of its own
  memory.feed(1500, 1);
  ASSERT_TRUE(memory.memory().prepare_index(1).ok());
  EXPECT_EQ(memory.index().layer(LayerIndex(0)).code().keys,
            source.index().layer(LayerIndex(0)).code().keys);
  // Not in a memory that holds something, not with other codes, not from one without.
  EXPECT_FALSE(memory.memory().adopt_codes(source.memory()).ok());
  IndexedMemory finer("full+topk(k=16,bits=4)");
  EXPECT_EQ(finer.memory().adopt_codes(source.memory()).error().code, ErrorCode::kMismatch);
  IndexedMemory empty, other;
  EXPECT_FALSE(empty.memory().adopt_codes(other.memory()).ok());
  IndexedMemory exact("full");
  EXPECT_FALSE(exact.memory().adopt_codes(source.memory()).ok());
  // A floor and a limit are no part of the codes.
  IndexedMemory limited("full+topk(max_error=0.05)");
  EXPECT_TRUE(limited.memory().adopt_codes(source.memory()).ok());
}

TEST(MemoryIndex, BranchesShareTilesAndDoNotDisturbEachOther) {
  IndexedMemory m;
  m.feed(1150);
  ASSERT_TRUE(m.memory().prepare_index(1).ok());
  ContextMemory branch = m.memory().clone();
  EXPECT_EQ(branch.index()->layer(LayerIndex(0)).tile(3), m.index().layer(LayerIndex(0)).tile(3));
  m.feed(100, 1);
  const CodeIndex& mine = m.index().layer(LayerIndex(0));
  const std::vector<std::byte> before(mine.tile(18), mine.tile(18) + mine.code().tile_bytes());
  std::swap(branch, m.memory());
  m.feed(100, 2);
  const CodeIndex& theirs = branch.index()->layer(LayerIndex(0));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), theirs.tile(18)));
  EXPECT_FALSE(std::equal(before.begin(), before.end(), m.index().layer(LayerIndex(0)).tile(18)));
}

class IndexFile : public ::testing::Test {
 protected:
  void SetUp() override {
    memory_.feed(1300);
    ASSERT_TRUE(memory_.memory().prepare_index(1).ok());
    record_ = testing::known_record(1300, "full+topk(k=16)");
    record_.tokens.assign(1300, 0);
    ASSERT_TRUE(save_memory(path(), record_, memory_.memory()).ok());
  }
  std::filesystem::path path() const { return folder_ / "m.vmem"; }
  std::string error_of(const std::string& bytes) const {
    testing::write_file(path(), bytes);
    Result<MemoryFile> file = MemoryFile::open(path());
    if (!file.ok()) return file.error().message;
    if (const Status rows = file->verify_rows(); !rows.ok()) return rows.error().message;
    const Result<ContextMemory> restored = file->restore();
    return restored.ok() ? std::string() : restored.error().message;
  }

  void save(const ContextMemory& memory, const std::string& name) {
    MemoryRecord record = record_;
    record.spec = to_string(memory.spec());
    record.tokens.assign(memory.tokens().begin(), memory.tokens().end());
    ASSERT_TRUE(save_memory(folder_ / name, record, memory).ok());
  }
  ContextMemory restore(const std::string& name) {
    MemoryFile file = MemoryFile::open(folder_ / name).value();
    EXPECT_TRUE(file.verify_rows().ok());
    return file.restore().value();  // keeps the file mapped
  }

  testing::TempFolder folder_;
  IndexedMemory memory_;
  MemoryRecord record_;
};

TEST_F(IndexFile, ComesBackAsItWas) {
  MemoryFile file = MemoryFile::open(path()).value();
  ASSERT_TRUE(file.verify_rows().ok());
  const ContextMemory restored = file.restore().value();
  ASSERT_TRUE(restored.index() != nullptr && restored.index()->ready());
  EXPECT_EQ(restored.index()->made_at(), 1300);
  for (const std::int64_t layer : {0, 2}) {
    const CodeIndex& a = memory_.index().layer(LayerIndex(layer));
    const CodeIndex& b = restored.index()->layer(LayerIndex(layer));
    EXPECT_EQ(a.code().keys, b.code().keys);
    EXPECT_EQ(a.code().values, b.code().values);
    ASSERT_EQ(a.n_tiles(), b.n_tiles());
    for (std::int64_t t = 0; t < a.n_tiles(); ++t)
      ASSERT_TRUE(std::equal(a.tile(t), a.tile(t) + a.code().tile_bytes(), b.tile(t)));
  }
  EXPECT_FALSE(restored.index()->layer(LayerIndex(1)).ready());
}

TEST_F(IndexFile, ADitherComesBackWithItsSalts) {
  IndexedMemory memory("full+topk(k=16,cert=dither)");
  memory.feed(1300);
  ASSERT_TRUE(memory.memory().prepare_index(1).ok());
  save(memory.memory(), "dither.vmem");
  const ContextMemory restored = restore("dither.vmem");
  const CodeIndex& a = memory.index().layer(LayerIndex(2));
  const CodeIndex& b = restored.index()->layer(LayerIndex(2));
  EXPECT_EQ(b.code().dither, Dither::kSubtractive);
  EXPECT_EQ(*a.head_tile(0, 5).key_salt, *b.head_tile(0, 5).key_salt);
  EXPECT_EQ(a.code().keys, b.code().keys);
}

TEST_F(IndexFile, ABlockFrameComesBackWithItsRotation) {
  IndexedMemory memory("full+topk(k=16,anchor=block)");
  memory.feed(1300);
  EXPECT_FALSE(memory.memory().prepare_index(1).ok());  // whose rotation?
  RopeConfig rope;
  rope.layout = RopeLayout::kHalfSplit;
  rope.rotated_dims = 24;
  ASSERT_TRUE(memory.memory().prepare_index(1, rope).ok());
  save(memory.memory(), "blocks.vmem");
  const ContextMemory restored = restore("blocks.vmem");
  const CodeIndex& a = memory.index().layer(LayerIndex(2));
  const CodeIndex& b = restored.index()->layer(LayerIndex(2));
  EXPECT_EQ(a.code().frame, b.code().frame);
  EXPECT_EQ(a.code().keys, b.code().keys);
  for (const std::int64_t tile : {0, 3, 4, 19}) {
    for (std::ptrdiff_t i = 0; i < 24; ++i) EXPECT_EQ(a.rotation(tile)[i], b.rotation(tile)[i]);
  }
  const std::string good = testing::read_file(folder_ / "blocks.vmem");
  const std::string index = Parts(good).header.metadata.at("index");
  const std::string part = ",12,1,0:";
  ASSERT_NE(index.find(part), std::string::npos) << index;
  for (const char* const bad :
       {",0,1,0:", ",0,0,0:", ",12,2,0:", ",17,1,0:", ",12,1:", ",12:", ":", ",12,1,0,0:"}) {
    Parts changed(good);
    std::string text = index;
    text.replace(text.find(part), part.size(), bad);
    changed.header.metadata["index"] = text;
    EXPECT_NE(error_of(changed.join()), "") << bad;
  }
}

TEST_F(IndexFile, BadSizesAreRefusedByName) {
  const std::string good = testing::read_file(path());
  const Parts parts(good);
  const std::string index = parts.header.metadata.at("index");
  for (const std::string& bad :
       {std::string(), std::string("-"), std::string("- - -"), index + " -", "x" + index,
        "9999999," + index, index.substr(0, index.size() - 1), index + ":4,0,0,16,0,0",
        std::string("20,1300,0:3,0,0,16,0,0:4,0,0,16,0,0 - 20,1300,0:4,0,0,16,0,0"),
        std::string("20,1300,2:4,0,0,16,0,0:4,0,0,16,0,0 - 20,1300,0:4,0,0,16,0,0"),
        std::string("21,1300,0:4,0,0,16,0,0:4,0,0,16,0,0 - 20,1300,0:4,0,0,16,0,0"),
        std::string("20,1300,0:4000000,0,0,16,0,0:4,0,0,16,0,0 - 20,1300,0:4,0,0,16,0,0")}) {
    Parts changed(good);
    changed.header.metadata["index"] = bad;
    EXPECT_NE(error_of(changed.join()), "") << bad;
  }
  Parts older(good);
  older.header.metadata["volvelle_format"] = "2";
  EXPECT_NE(error_of(older.join()), "");
  EXPECT_EQ(error_of(good), "");
}

TEST_F(IndexFile, NumbersThatNoCodeHasAreRefused) {
  const std::string good = testing::read_file(path());
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Parts parts(good);
    parts.put("layer.0.index.code", 40, bad);
    EXPECT_NE(error_of(parts.join()).find("numbers that no code has"), std::string::npos);
  }
}

TEST_F(IndexFile, AFlippedBitAnywhereIsSeen) {
  const std::string good = testing::read_file(path());
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::string bytes = good;
    const std::size_t at = random() % bytes.size();
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    ASSERT_NE(error_of(bytes), "") << at;
  }
}

}  // namespace
}  // namespace volvelle
