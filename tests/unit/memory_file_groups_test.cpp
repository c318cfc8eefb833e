// Memory files of layers with windows of their own: every group of layers has its rows and their
// positions; and what the metadata of format 2 claims is refused where it is not what a writer
// would have written, behind good checks too.
#include <gtest/gtest.h>

#include <functional>

#include "unit/memory_file_support.hpp"

namespace volvelle {
namespace {

using testing::known_memory;
using testing::known_record;
using testing::Parts;
using testing::positions_in;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

/// Layers with windows of 0, 8, 0, 100 and 8 tokens; the fourth stores nothing.
StoreLayout layered() {
  return {{{1, 3, 2, 0}, {2, 2, 5, 8}, {1, 4, 4, 0}, {}, {1, 2, 3, 100}, {3, 1, 2, 8}},
          ElementType::kF16,
          ElementType::kF32};
}
constexpr const char* kWords = "1,3,2,0,0 2,2,5,8,1 1,4,4,0,0 - 1,2,3,100,2 3,1,2,8,1";
constexpr std::int64_t kTokens = 700;

class GroupsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    record_ = known_record(kTokens);
    record_.kind = kConversationMemory;
    record_.sources = {{"emma.txt", {0, 900}}, {"", {900, 900}}, {"user said: ", {1000, 2094}}};
    ASSERT_TRUE(save_memory(path(), record_, known_memory(record_, layered())).ok());
    good_ = read_file(path());
  }
  std::filesystem::path path() const { return folder_ / "m.vmem"; }

  /// The error of opening, verifying or restoring a file; empty if there is none.
  std::string error_of(const std::string& bytes) {
    write_file(path(), bytes);
    Result<MemoryFile> file = MemoryFile::open(path());
    if (!file.ok()) return file.error().message;
    EXPECT_TRUE(file->verify_rows().ok());
    const Result<ContextMemory> memory = file->restore();
    return memory.ok() ? std::string() : memory.error().message;
  }
  std::string error_with(const std::string& key, const std::string& value) {
    Parts parts(good_);
    parts.header.metadata[key] = value;
    return error_of(parts.join());
  }
  void expect_refused(const std::string& key, const std::string& value, const char* part) {
    const std::string message = error_with(key, value);
    EXPECT_NE(message, "") << key << " = " << value;
    EXPECT_NE(message.find(part), std::string::npos) << key << " = " << value << ": " << message;
  }

  TempFolder folder_;
  MemoryRecord record_;
  std::string good_;
};

TEST_F(GroupsTest, EveryGroupComesBack) {
  MemoryFile file = MemoryFile::open(path()).value();
  EXPECT_EQ(file.record().kind, kConversationMemory);
  EXPECT_EQ(file.record().sources, record_.sources);
  EXPECT_EQ(file.layout(), layered());
  // keep_from: the window and 256 spare tokens
  EXPECT_EQ(file.row_positions(),
            (RowPositions{positions_in(0, 700), positions_in(700 - 7 - 256, 700),
                          positions_in(700 - 99 - 256, 700)}));
  const std::size_t all = 700 * (6 + 8) + 700 * (8 + 16);
  EXPECT_EQ(file.row_bytes(), all + 263 * (8 + 40) + 263 * (6 + 24) + 355 * (4 + 12));
  ASSERT_TRUE(file.verify_rows().ok());
  ContextMemory memory = file.restore().value();
  testing::expect_known_rows(memory);
  EXPECT_EQ(memory.reserved_bytes(), 0u);

  testing::feed(memory, known_record(kTokens + 500), kTokens);
  testing::expect_known_rows(memory);
  MemoryRecord longer = known_record(kTokens + 500);
  ASSERT_TRUE(save_memory(folder_ / "n.vmem", longer, memory).ok());
  ASSERT_TRUE(save_memory(folder_ / "o.vmem", longer, known_memory(longer, layered())).ok());
  EXPECT_TRUE(read_file(folder_ / "n.vmem") == read_file(folder_ / "o.vmem"));
}

TEST_F(GroupsTest, MetadataIsWrittenAsDescribed) {
  const Parts parts(good_);
  EXPECT_EQ(parts.header.metadata.at("layers"), kWords);
  EXPECT_EQ(parts.header.metadata.at("sources"),
            "0 900 emma.txt\n900 900 \n1000 2094 user said: \n");
  EXPECT_EQ(parts.header.metadata.at("kind"), "conversation");
  EXPECT_EQ(parts.header.find("layer.3.k"), nullptr);
  EXPECT_EQ(parts.header.find("row_positions.2")->shape, std::vector<std::uint64_t>{355});
  EXPECT_EQ(error_of(good_), "");
}

TEST_F(GroupsTest, FoldingIntoTheFileGivesTheSameBytes) {
  auto memory = ContextMemory::create(layered(), *parse_memory_spec(record_.spec)).value();
  auto writer = MemoryFileWriter::create(folder_ / "a.vmem", record_, layered(),
                                         positions_after(memory.grouping(), kTokens));
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(memory.write_into(0, writer->rows(0)).ok());
  testing::feed(memory, record_);
  for (const int group : {1, 2}) ASSERT_TRUE(writer->copy_rows(memory, group).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_TRUE(read_file(folder_ / "a.vmem") == good_);
}

TEST_F(GroupsTest, RowsOfAnotherMemoryAreNotCopied) {
  const auto refusal = [&](const StoreLayout& layout, std::int64_t n, int group) {
    auto writer = MemoryFileWriter::create(
        folder_ / "a.vmem", record_, layered(),
        positions_after(group_layers(layered(), *parse_memory_spec(record_.spec)), kTokens));
    const Status status = writer->copy_rows(known_memory(known_record(n), layout), group);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(refusal(layered(), kTokens, 1), "");
  EXPECT_NE(refusal(layered(), kTokens - 1, 1).find("keeps other rows"), std::string::npos);
  StoreLayout wider = layered();
  wider.layers[1].head_dim_k = 50;  // same positions, other rows
  EXPECT_NE(refusal(wider, kTokens, 1).find("other layers"), std::string::npos);
  StoreLayout plain = layered();
  for (LayerShape& layer : plain.layers) layer.window = 0;
  EXPECT_NE(refusal(plain, kTokens, 2).find("other layers"), std::string::npos);
  EXPECT_NE(refusal(layered(), kTokens, 3).find("group 3"), std::string::npos);
  EXPECT_NE(refusal(layered(), kTokens, -1).find("group -1"), std::string::npos);
}

TEST_F(GroupsTest, WritersRefuseOtherGroups) {
  const LayerGrouping grouping = group_layers(layered(), *parse_memory_spec(record_.spec));
  RowPositions positions = positions_after(grouping, kTokens);
  positions.pop_back();
  auto writer = MemoryFileWriter::create(folder_ / "a.vmem", record_, layered(), positions);
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.error().message.find("needs 3 groups of rows, got 2"), std::string::npos)
      << writer.error().message;
  const auto refused = [&](const std::function<void(MemoryRecord&)>& change) {
    MemoryRecord record = record_;
    change(record);
    return !MemoryFileWriter::create(folder_ / "a.vmem", record, layered(),
                                     positions_after(grouping, kTokens))
                .ok();
  };
  EXPECT_FALSE(refused([](MemoryRecord&) {}));
  EXPECT_TRUE(refused([](MemoryRecord& r) { r.kind = "diary"; }));
  EXPECT_TRUE(refused([](MemoryRecord& r) { r.sources[0].name = "two\nlines"; }));
  EXPECT_TRUE(refused([](MemoryRecord& r) { r.sources[0].range = {901, 900}; }));
  EXPECT_TRUE(refused([](MemoryRecord& r) { r.sources[2].range.end = 2095; }));
  EXPECT_TRUE(refused([](MemoryRecord& r) { r.sources[1].range = {899, 950}; }));
  EXPECT_TRUE(refused([](MemoryRecord& r) { std::swap(r.sources[0], r.sources[2]); }));
  EXPECT_TRUE(refused([](MemoryRecord& r) { r.sources[0].range = {-1, -1}; }));
}

// Each of these says something that the rest of the file contradicts, or that no writer says.
TEST_F(GroupsTest, ForgedLayersAreRefusedBehindGoodChecks) {
  const auto with = [&](const std::string& word, const std::string& instead) {
    std::string words = kWords;
    words.replace(words.find(word), word.size(), instead);
    return words;
  };
  struct Case {
    std::string layers;
    const char* part;
  };
  const Case cases[] = {
      {"", "found none"},
      {"- - - - - -", "found none"},
      {with("1,3,2,0,0", "1,3,2,0,9"), "no such group 9"},
      {with("1,3,2,0,0", "1,3,2,0,2147483647"), "no such group"},
      {with("1,3,2,0,0", "1,3,2,0,2147483648"), "unexpected"},
      {with("1,3,2,0,0", "1,3,2,0,-1"), "unexpected"},
      {with("1,3,2,0,0", "1,3,2,0"), "unexpected"},
      {with("1,3,2,0,0", "1,3,2,0,0,0"), "unexpected"},
      {with("1,3,2,0,0", "1,3,2,0,00"), "unexpected"},
      {with("1,3,2,0,0", "0,3,2,0,0"), "unexpected"},
      {with("1,3,2,0,0", "1,0,2,0,0"), "unexpected"},
      {with("1,3,2,0,0", "1,3,2,99999999999999,0"), "unexpected"},
      {with("1,3,2,0,0", "1,3,2,x,0"), "unexpected"},
      {with("1,3,2,0,0", "--"), "unexpected"},
      {with("1,3,2,0,0", "1,4,2,0,0"), "layer.0.k"},
      {with("1,3,2,0,0", "2147483647,2147483647,2,0,0"), ""},
      {with("1,3,2,0,0", "1,3,2,0,1"), "layer.0.k"},  // other rows
      {with("1,3,2,0,0", "-"), "tensors"},            // its rows are there
      {with("-", "1,3,2,0,0"), "tensors"},            // has no rows
      {std::string(kWords) + " ", "metadata"},        // not canonical
      {with(" ", "\t"), "metadata"},
      {with("2,2,5,8,1", "2,2,5,16,1"), "grouped"},   // needs a fourth group
      {with("1,2,3,100,2", "1,2,3,8,2"), "grouped"},  // belongs to the second one
      {with("1,4,4,0,0", "1,4,4,300,0"), "grouped"},
  };
  for (const Case& c : cases) expect_refused("layers", c.layers, c.part);
  // All layers with windows of 8 claim 9: the grouping is right, and a row before what is there.
  std::string wider = with("2,2,5,8,1", "2,2,5,280,1");
  wider.replace(wider.find("3,1,2,8,1"), 9, "3,1,2,280,1");
  wider.replace(wider.find("1,2,3,100,2"), 11, "1,2,3,300,2");
  expect_refused("layers", wider, "some are missing");
}

TEST_F(GroupsTest, ForgedSourcesAndKindsAreRefusedBehindGoodChecks) {
  for (const char* kind : {"", "Document", "diary", "document "}) {
    expect_refused("kind", kind, "not known");
  }
  for (const char* sources :
       {"x", "0 5", "0 5 a\n6", "-1 5 a\n", "0 -5 a\n", "00 5 a\n", "0 99999999999999999999 a\n"}) {
    expect_refused("sources", sources, "'sources'");
  }
  for (const char* sources : {"5 4 a\n", "0 2095 a\n", "0 5 a\n4 6 b\n", "9 10 a\n0 5 b\n"}) {
    expect_refused("sources", sources, "out of order or outside");
  }
  for (const char* sources : {"0 5 a", "0 5 a\n\n", "\n0 5 a\n"}) {  // not canonical
    EXPECT_NE(error_with("sources", sources), "") << sources;
  }
  EXPECT_EQ(error_with("sources", ""), "");
  EXPECT_EQ(error_with("sources", "0 5 a\n"), "");
  EXPECT_EQ(error_with("kind", "document"), "");
  for (const char* key : {"kind", "layers", "sources"}) {
    Parts parts(good_);
    parts.header.metadata.erase(key);
    EXPECT_NE(error_of(parts.join()).find("is missing"), std::string::npos) << key;
  }
}

// A spec that groups these layers otherwise, or needs other rows of them.
TEST_F(GroupsTest, ASpecThatDoesNotGoWithTheRowsIsNotRestored) {
  // Other rules for the same groups, and every row that they need is there.
  EXPECT_EQ(error_with("spec", "window(50)+kv(k=f16,v=f32)"), "");
  EXPECT_EQ(error_with("spec", "full+swa(full)+kv(k=f16,v=f32)"), "");
  expect_refused("spec", "window(8)+kv(k=f16,v=f32)", "grouped");
  expect_refused("spec", "full+topk(k=4,index=exact)+kv(k=f16,v=f32)", "index=exact");
  expect_refused("spec", "full", "");
  expect_refused("spec", "nonsense", "nonsense");
}

TEST_F(GroupsTest, PositionsOfEveryGroupAreChecked) {
  for (const char* tensor : {"row_positions", "row_positions.1", "row_positions.2"}) {
    for (const std::int64_t position : {std::int64_t{-1}, std::int64_t{700}, std::int64_t{0}}) {
      Parts parts(good_);
      parts.put(tensor, 3, position);
      EXPECT_NE(error_of(parts.join()).find("is at position"), std::string::npos) << tensor;
    }
    Parts parts(good_);  // a row that the next query sees is missing
    const auto last = parts.header.find(tensor)->shape[0] - 1;
    std::int64_t previous = 0;
    for (std::size_t i = 0; i < last; ++i) {  // all rows one position earlier, the last one stays
      previous = testing::le_at<std::int64_t>(parts.tensor(tensor), i * 8);
      if (previous > 0) parts.put(tensor, i, previous - 1);
    }
    EXPECT_NE(error_of(parts.join()), "") << tensor;
  }
}

}  // namespace
}  // namespace volvelle
