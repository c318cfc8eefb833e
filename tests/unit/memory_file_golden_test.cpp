// Files of earlier format versions, kept in tests/golden: they open, verify, are restored with the
// rows that lie in their bytes, go on, and come out as files of this version.
//
// memory_v1.vmem: format 1, the wired retriever's memory of "f01 k05 v07 f02 k11 v13 f03 f04 f05
// k05" (11 tokens with BOS, 2 layers of 2 KV heads of 64 halves), spec 'full'.
#include <gtest/gtest.h>

#include "unit/memory_file_support.hpp"

namespace volvelle {
namespace {

using testing::as_bytes;
using testing::Parts;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

std::filesystem::path golden() {
  return std::filesystem::path(VOLVELLE_GOLDEN_DIR) / "memory_v1.vmem";
}

MemoryFile opened(const std::filesystem::path& path) {
  Result<MemoryFile> file = MemoryFile::open(path);
  EXPECT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify_rows().ok());
  return std::move(file).value();
}

/// Element `i` of row `row` of a head of a tensor [2, 11, 64] of halves, by the formula of
/// docs/memory_file.md.
float by_hand(const std::string& file, std::size_t tensor_begin, std::size_t head, std::size_t row,
              std::size_t i) {
  const std::size_t at = tensor_begin + ((head * 11 + row) * 64 + i) * 2;
  return f16_to_f32(testing::le_at<std::uint16_t>(file, at));
}

TEST(MemoryFileFormat1, SaysWhatItSaidThen) {
  const MemoryFile file = opened(golden());
  const MemoryRecord& record = file.record();
  EXPECT_EQ(record.spec, "full");
  EXPECT_EQ(record.kind, kDocumentMemory);
  EXPECT_EQ(record.model_name, "wired-retriever");
  EXPECT_EQ(record.chat_format, "raw");
  EXPECT_EQ(record.text, "f01 k05 v07 f02 k11 v13 f03 f04 f05 k05");
  EXPECT_EQ(record.tokens.size(), 11u);
  EXPECT_EQ(record.text_begin_token, 1);
  EXPECT_EQ(record.chunk, 256);
  EXPECT_TRUE(record.sources.empty());
  EXPECT_EQ(record.ranges.front(), ByteRange{});
  EXPECT_EQ(record.ranges.back().end, 39);
  const LayerShape layer{2, 64, 64, 0};
  EXPECT_EQ(file.layout(), (StoreLayout{{layer, layer}, ElementType::kF16, ElementType::kF16}));
  EXPECT_EQ(file.row_positions(), RowPositions{testing::positions_in(0, 11)});
}

TEST(MemoryFileFormat1, RowsAreTheBytesOfTheFile) {
  const std::string bytes = read_file(golden());
  const SafetensorsHeader header = parse_safetensors(as_bytes(bytes)).value();
  MemoryFile file = opened(golden());
  const ContextMemory memory = file.restore().value();
  int n_different = 0;  // of zero: the rows do say something
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto side : {testing::Side::kKey, testing::Side::kValue}) {
      const std::string name =
          "layer." + std::to_string(layer) + (side == testing::Side::kKey ? ".k" : ".v");
      const std::size_t begin = header.data_offset + header.find(name)->begin;
      for (std::size_t row = 0; row < 11; ++row) {
        const auto found = testing::read_row(memory.groups().front().store(), layer, side,
                                             static_cast<std::int64_t>(row));
        ASSERT_TRUE(found);
        for (std::size_t i = 0; i < 128; ++i) {
          ASSERT_EQ((*found)[i], by_hand(bytes, begin, i / 64, row, i % 64)) << name << " " << row;
          n_different += (*found)[i] != 0.0f;
        }
      }
    }
  }
  EXPECT_GT(n_different, 100);
}

TEST(MemoryFileFormat1, GoesOnAndIsSavedAsThisVersion) {
  const TempFolder folder;
  MemoryFile file = opened(golden());
  ContextMemory memory = file.restore().value();
  MemoryRecord record = file.record();
  testing::feed_known(memory, 5, 2);
  for (std::size_t i = record.tokens.size(); i < 16; ++i) {
    record.tokens.push_back(memory.tokens()[i]);
    record.ranges.emplace_back();
  }
  ASSERT_TRUE(save_memory(folder / "v2.vmem", record, memory).ok());
  EXPECT_NE(read_file(folder / "v2.vmem").find("\"volvelle_format\":\"2\""), std::string::npos);
  MemoryFile again = opened(folder / "v2.vmem");
  EXPECT_EQ(again.record().tokens, record.tokens);
  EXPECT_EQ(again.layout(), file.layout());
  const ContextMemory both = again.restore().value();
  for (std::int64_t row = 0; row < 11; ++row) {
    ASSERT_EQ(testing::read_row(both.groups().front().store(), 1, testing::Side::kValue, row),
              testing::read_row(memory.groups().front().store(), 1, testing::Side::kValue, row));
  }
  for (std::int64_t row = 11; row < 16; ++row) {
    EXPECT_TRUE(
        testing::holds_known(both.groups().front().store(), row, static_cast<std::uint64_t>(row)));
  }
}

TEST(MemoryFileFormat1, DamageIsSeenAsInNewerFiles) {
  const TempFolder folder;
  const std::string good = read_file(golden());
  for (std::size_t at = 0; at < good.size(); at += 41) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    write_file(folder / "m.vmem", bytes);
    Result<MemoryFile> file = MemoryFile::open(folder / "m.vmem");
    ASSERT_FALSE(file.ok() && file->verify_rows().ok()) << at;
  }
}

// A file does not become one of another version by saying so.
TEST(MemoryFileFormat1, VersionsAreNotExchangeable) {
  const TempFolder folder;
  const auto error_of = [&](const std::string& bytes) {
    write_file(folder / "m.vmem", bytes);
    const Result<MemoryFile> file = MemoryFile::open(folder / "m.vmem");
    return file.ok() ? std::string() : file.error().message;
  };
  Parts newer(read_file(golden()));
  newer.header.metadata["volvelle_format"] = "2";
  EXPECT_NE(error_of(newer.join()).find("'kind' is missing"), std::string::npos);
  Parts older(read_file(golden()));
  older.header.metadata["layers"] = "2,64,64,0,0 2,64,64,0,0";
  EXPECT_NE(error_of(older.join()).find("keys that this format does not have"), std::string::npos);
  // Other storage types do not go with its tensors.
  for (const char* type : {"bf16", "q8_0", "q4_0"}) {
    Parts types(read_file(golden()));
    types.header.metadata["k_type"] = type;
    EXPECT_NE(error_of(types.join()), "") << type;
  }
}

}  // namespace
}  // namespace volvelle
