// Memory files: what is saved comes back, the bytes are those that docs/memory_file.md describes
// (read here by hand), and writers leave the old file or a complete new one.
// Damaged and inconsistent files: memory_file_damage_test.cpp.
#include "volvelle/memory/memory_file.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "unit/memory_file_support.hpp"
#include "volvelle/io/checksum.hpp"

namespace volvelle {
namespace {

using testing::expect_known_rows;
using testing::known_memory;
using testing::known_record;
using testing::mixed_layout;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

std::vector<Position> positions_to(std::int64_t n) {
  std::vector<Position> out;
  for (std::int64_t i = 0; i < n; ++i) out.emplace_back(i);
  return out;
}

void expect_same(const MemoryRecord& a, const MemoryRecord& b) {
  EXPECT_EQ(a.spec, b.spec);
  EXPECT_EQ(a.engine, b.engine);
  EXPECT_EQ(a.model_path, b.model_path);
  EXPECT_EQ(a.model_name, b.model_name);
  EXPECT_EQ(a.model_fingerprint, b.model_fingerprint);
  EXPECT_EQ(a.tokenizer_hash, b.tokenizer_hash);
  EXPECT_EQ(a.rope, b.rope);
  EXPECT_EQ(a.chat_format, b.chat_format);
  EXPECT_EQ(a.template_hash, b.template_hash);
  EXPECT_EQ(a.chunk, b.chunk);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.ranges, b.ranges);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.text_begin_token, b.text_begin_token);
}

TEST(MemoryFile, SavedMemoryComesBack) {
  const TempFolder folder;
  // Several extents of the store, several blocks of checks.
  const MemoryRecord record = known_record(2500);
  const ContextMemory memory = known_memory(record, mixed_layout());
  const auto bytes = save_memory(folder / "m.vmem", record, memory);
  ASSERT_TRUE(bytes.ok()) << bytes.error().message;
  EXPECT_EQ(*bytes, std::filesystem::file_size(folder / "m.vmem"));
  EXPECT_EQ(folder.n_entries(), 1u);

  auto file = MemoryFile::open(folder / "m.vmem");
  ASSERT_TRUE(file.ok()) << file.error().message;
  expect_same(file->record(), record);
  EXPECT_EQ(file->layout(), mixed_layout());
  EXPECT_EQ(file->file_bytes(), *bytes);
  EXPECT_EQ(file->row_bytes(), 2500 * mixed_layout().bytes_per_token());
  ASSERT_TRUE(file->verify_rows().ok());
  ASSERT_TRUE(file->verify_rows().ok());
  auto restored = file->restore();
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_EQ(restored->length(), 2500);
  EXPECT_EQ(to_string(restored->spec()), record.spec);
  EXPECT_TRUE(std::equal(restored->tokens().begin(), restored->tokens().end(),
                         record.tokens.begin(), record.tokens.end()));
  expect_known_rows(*restored);
  EXPECT_EQ(restored->groups().front().store().reserved_bytes(),
            0u);  // all rows are read where the file has them
}

TEST(MemoryFile, RestoredMemoryGoesOnWithoutTouchingTheFile) {
  const TempFolder folder;
  MemoryRecord record = known_record(300);
  ASSERT_TRUE(save_memory(folder / "m.vmem", record, known_memory(record, mixed_layout())).ok());
  const std::string before = read_file(folder / "m.vmem");
  auto file = MemoryFile::open(folder / "m.vmem");
  ASSERT_TRUE(file.ok() && file->verify_rows().ok());
  auto memory = file->restore();
  ASSERT_TRUE(memory.ok());

  const MemoryRecord longer = known_record(450);
  ContextMemory branch = memory->clone();
  testing::feed(*memory, longer, 300);
  expect_known_rows(*memory);
  EXPECT_EQ(branch.length(), 300);
  ASSERT_TRUE(branch.truncate(200).ok());
  testing::feed(branch, longer, 200);  // rows of the file are not overwritten
  expect_known_rows(branch);
  EXPECT_EQ(read_file(folder / "m.vmem"), before);

  // The longer memory, part file and part RAM, saved over the file it reads from.
  ASSERT_TRUE(save_memory(folder / "m.vmem", longer, *memory).ok());
  expect_known_rows(*memory);
  auto again = MemoryFile::open(folder / "m.vmem");
  ASSERT_TRUE(again.ok() && again->verify_rows().ok());
  EXPECT_EQ(again->restore()->length(), 450);
  expect_known_rows(*again->restore());
}

TEST(MemoryFile, FoldingIntoTheFileGivesTheSameBytes) {
  const TempFolder folder;
  const MemoryRecord record = known_record(1500);
  auto writer =
      MemoryFileWriter::create(folder / "a.vmem", record, mixed_layout(), {positions_to(1500)});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  auto memory = ContextMemory::create(mixed_layout(), *parse_memory_spec(record.spec));
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->write_into(0, writer->rows()).ok());
  testing::feed(*memory, record);
  EXPECT_EQ(memory->groups().front().store().reserved_bytes(), 0u);  // the rows went into the file
  EXPECT_FALSE(std::filesystem::exists(folder / "a.vmem"));
  const auto bytes = writer->finish();
  ASSERT_TRUE(bytes.ok()) << bytes.error().message;
  EXPECT_EQ(*bytes, std::filesystem::file_size(folder / "a.vmem"));
  ASSERT_TRUE(save_memory(folder / "b.vmem", record, known_memory(record, mixed_layout())).ok());
  const std::string finished = read_file(folder / "a.vmem");
  EXPECT_TRUE(finished == read_file(folder / "b.vmem"));

  // The memory lives on, but the finished file does not change any more.
  expect_known_rows(*memory);
  ASSERT_TRUE(memory->truncate(1000).ok());
  testing::feed(*memory, known_record(1200), 1000);
  expect_known_rows(*memory);
  EXPECT_TRUE(finished == read_file(folder / "a.vmem"));
}

TEST(MemoryFile, WindowedMemorySavesOnlyTheRowsItKeeps) {
  const TempFolder folder;
  const std::string spec = "sink(4)+window(128)+kv(k=f16,v=f32)";
  const MemoryRecord record = known_record(1000, spec);
  const ContextMemory memory = known_memory(record, mixed_layout());
  ASSERT_TRUE(save_memory(folder / "m.vmem", record, memory).ok());
  auto file = MemoryFile::open(folder / "m.vmem");
  ASSERT_TRUE(file.ok()) << file.error().message;
  // E(1000) = 64 floor(873 / 64) = 832, and one spare block before it.
  std::vector<Position> expected = positions_to(4);
  for (std::int64_t p = 768; p < 1000; ++p) expected.emplace_back(p);
  EXPECT_EQ(file->row_positions(), RowPositions{expected});
  ASSERT_TRUE(file->verify_rows().ok());
  auto restored = file->restore();
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_EQ(restored->length(), 1000);
  expect_known_rows(*restored);
}

// Reads one whole number behind `label` in the JSON text, without a JSON parser.
std::uint64_t number_behind(const std::string& json, const std::string& label) {
  const std::size_t at = json.find(label);
  EXPECT_NE(at, std::string::npos) << label;
  return at == std::string::npos ? 0 : std::stoull(json.substr(at + label.size()));
}

TEST(MemoryFile, BytesAreWhereTheDescriptionSays) {
  const TempFolder folder;
  const MemoryRecord record = known_record(2500);
  ASSERT_TRUE(save_memory(folder / "m.vmem", record, known_memory(record, mixed_layout())).ok());
  const std::string file = read_file(folder / "m.vmem");
  const std::uint64_t data = 8 + testing::le_at<std::uint64_t>(file, 0);
  EXPECT_EQ(data % 64, 0u);
  const std::string json = file.substr(8, data - 8);
  EXPECT_NE(json.find("\"volvelle_format\":\"2\""), std::string::npos);
  EXPECT_NE(json.find("\"n_tokens\":\"2500\""), std::string::npos);
  const auto begin_of = [&](const std::string& head) {
    const std::uint64_t begin = number_behind(json, head + ",\"data_offsets\":[");
    EXPECT_EQ(begin % 64, 0u) << head;
    return data + begin;
  };
  const std::uint64_t tokens = begin_of(R"("tokens":{"dtype":"I32","shape":[2500])");
  EXPECT_EQ(tokens, data);
  EXPECT_EQ(testing::le_at<std::int32_t>(file, tokens + 4 * 11), record.tokens[11]);
  const std::uint64_t ranges = begin_of(R"("ranges":{"dtype":"I64","shape":[2500,2])");
  EXPECT_EQ(testing::le_at<std::int64_t>(file, ranges + 16), -1);
  EXPECT_EQ(testing::le_at<std::int64_t>(file, ranges + 16 * 5 + 8), record.ranges[5].end);
  const std::uint64_t positions = begin_of(R"("row_positions":{"dtype":"I64","shape":[2500])");
  EXPECT_EQ(testing::le_at<std::int64_t>(file, positions + 8 * 99), 99);
  const std::uint64_t text = begin_of(R"("text":{"dtype":"U8","shape":[7494])");
  EXPECT_EQ(file.substr(text, 7494), record.text);

  const std::uint64_t k = begin_of(R"("layer.2.k":{"dtype":"F16","shape":[3,2500,5])");
  const std::uint64_t v = begin_of(R"("layer.2.v":{"dtype":"F32","shape":[3,2500,7])");
  const LayerShape shape = mixed_layout().layers[2];
  const std::vector<float> k_row = testing::known_row(1234, 2, testing::Side::kKey, shape);
  const std::vector<float> v_row = testing::known_row(1234, 2, testing::Side::kValue, shape);
  for (std::size_t head = 0; head < 3; ++head) {
    const std::size_t row = head * 2500 + 1234;
    EXPECT_EQ(testing::le_at<std::uint16_t>(file, k + 2 * (5 * row + 4)),
              f32_to_f16(k_row[5 * head + 4]));
    EXPECT_EQ(testing::le_at<float>(file, v + 4 * (7 * row + 6)), v_row[7 * head + 6]);
  }

  // Last come the checks: of the header, and of each MiB of data before them.
  const std::uint64_t n_checks = number_behind(json, R"("checks":{"dtype":"U8","shape":[)");
  const std::uint64_t checks = file.size() - n_checks;
  const std::uint64_t n_blocks = (checks - data + (1 << 20) - 1) >> 20;
  ASSERT_GE(n_blocks, 2u);
  ASSERT_EQ(n_checks, 16 * (1 + n_blocks));
  const auto check = [&](std::uint64_t i) { return file.substr(checks + 16 * i, 16); };
  const auto sum_of = [&](std::uint64_t begin, std::uint64_t end) {
    const Checksum sum = checksum(testing::as_bytes(file).subspan(begin, end - begin));
    return std::string(reinterpret_cast<const char*>(sum.data()), sum.size());
  };
  EXPECT_EQ(check(0), sum_of(0, data));
  for (std::uint64_t i = 0; i < n_blocks; ++i) {
    const std::uint64_t begin = data + (i << 20);
    EXPECT_EQ(check(i + 1), sum_of(begin, std::min<std::uint64_t>(begin + (1 << 20), checks)));
  }
}

TEST(MemoryFile, TextAndTemplateAreOptional) {
  const TempFolder folder;
  MemoryRecord record = known_record(1);
  record.text_begin_token = 1;
  record.template_hash.clear();
  ASSERT_TRUE(record.text.empty());
  ASSERT_TRUE(save_memory(folder / "m.vmem", record, known_memory(record, mixed_layout())).ok());
  auto file = MemoryFile::open(folder / "m.vmem");
  ASSERT_TRUE(file.ok()) << file.error().message;
  expect_same(file->record(), record);
  ASSERT_TRUE(file->verify_rows().ok());
  EXPECT_TRUE(file->restore().ok());
}

TEST(MemoryFile, RowsAreNotHandedOutUnchecked) {
  const TempFolder folder;
  const MemoryRecord record = known_record(10);
  ASSERT_TRUE(save_memory(folder / "m.vmem", record, known_memory(record, mixed_layout())).ok());
  const auto file = MemoryFile::open(folder / "m.vmem");
  ASSERT_TRUE(file.ok());
  EXPECT_THROW((void)file->restore(), std::logic_error);
}

TEST(MemoryFile, LoadedMemorySurvivesItsFile) {
  const TempFolder folder;
  const MemoryRecord record = known_record(200);
  ASSERT_TRUE(save_memory(folder / "m.vmem", record, known_memory(record, mixed_layout())).ok());
  std::optional<ContextMemory> memory;
  {
    auto file = MemoryFile::open(folder / "m.vmem");
    ASSERT_TRUE(file.ok() && file->verify_rows().ok());
    memory = file->restore().value();
  }
  std::filesystem::remove(folder / "m.vmem");
  expect_known_rows(*memory);
}

TEST(MemoryFile, ProgressReachesTheEnd) {
  const TempFolder folder;
  const MemoryRecord record = known_record(6000);
  std::vector<Progress> seen;
  const ProgressSink sink = [&](const Progress& p) { seen.push_back(p); };
  auto writer =
      MemoryFileWriter::create(folder / "m.vmem", record, mixed_layout(), {positions_to(6000)});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->finish(sink).ok());
  ASSERT_FALSE(seen.empty());
  const SafetensorsHeader header =
      parse_safetensors(testing::as_bytes(read_file(folder / "m.vmem"))).value();
  const auto checked = static_cast<std::int64_t>(header.find("checks")->begin);
  ASSERT_NE(checked % (1 << 20), 0);  // or rounding to blocks would not show
  EXPECT_EQ(seen.back().done, checked);
  EXPECT_EQ(seen.back().total, checked);
  seen.clear();
  auto file = MemoryFile::open(folder / "m.vmem");
  ASSERT_TRUE(file.ok() && file->verify_rows(sink).ok());
  ASSERT_FALSE(seen.empty());
  // All but the blocks that open() has checked, those up to the end of the text.
  const auto small = (static_cast<std::int64_t>(header.find("text")->end) + (1 << 20) - 1) >> 20;
  EXPECT_EQ(seen.back().total, checked - (small << 20));
  EXPECT_EQ(seen.back().done, seen.back().total);
  EXPECT_EQ(seen.back().phase, "verify");
}

TEST(MemoryFileWriter, WithoutFinishTheOldFileStays) {
  const TempFolder folder;
  write_file(folder / "m.vmem", "old");
  {
    auto writer = MemoryFileWriter::create(folder / "m.vmem", known_record(10), mixed_layout(),
                                           {positions_to(10)});
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(read_file(folder / "m.vmem"), "old");
  }
  EXPECT_EQ(read_file(folder / "m.vmem"), "old");
  EXPECT_EQ(folder.n_entries(), 1u);
}

TEST(MemoryFileWriter, TwoWritersLeaveAnIntactFile) {
  const TempFolder folder;
  const auto write_often = [&](std::int64_t n) {
    const MemoryRecord record = known_record(n);
    const ContextMemory memory = known_memory(record, mixed_layout());
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(save_memory(folder / "m.vmem", record, memory).ok());
      auto file = MemoryFile::open(folder / "m.vmem");
      ASSERT_TRUE(file.ok()) << file.error().message;
      EXPECT_TRUE(file->verify_rows().ok());
    }
  };
  std::thread other(write_often, 100);
  write_often(333);
  other.join();
  EXPECT_EQ(folder.n_entries(), 1u);
}

TEST(MemoryFileWriter, RefusesRecordsThatCouldNotBeRestored) {
  const TempFolder folder;
  write_file(folder / "m.vmem", "old");
  const auto message_of = [&](const MemoryRecord& record, const StoreLayout& layout,
                              std::int64_t first_row, std::int64_t n_rows) {
    std::vector<Position> positions;
    for (std::int64_t i = 0; i < n_rows; ++i) positions.emplace_back(first_row + i);
    const auto writer = MemoryFileWriter::create(folder / "m.vmem", record, layout, {positions});
    EXPECT_FALSE(writer.ok());
    if (writer.ok()) return std::string();
    testing::expect_one_line(writer.error().message);
    return writer.error().message;
  };
  const auto changed = [](auto change) {
    MemoryRecord record = known_record(10);
    change(record);
    return record;
  };
  const auto with = [&](auto change) { return message_of(changed(change), mixed_layout(), 0, 10); };
  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(message_of(known_record(0), mixed_layout(), 0, 0), "no tokens");
  has(message_of(known_record(10), mixed_layout(), 0, 0), "no rows");
  has(message_of(known_record(10), mixed_layout(), 0, 11), "row 10 is at position 10");
  has(message_of(known_record(10), mixed_layout(), -1, 5), "row 0 is at position -1");
  has(message_of(known_record(10), {{}, ElementType::kF16, ElementType::kF32}, 0, 10), "no layers");
  has(message_of(known_record(10), {{{1, 8, 8}, {0, 8, 8}}, ElementType::kF16, ElementType::kF32},
                 0, 10),
      "positive");
  has(message_of(known_record(10, "full"), mixed_layout(), 0, 10), "storage types");
  has(message_of(known_record(10, "kv(k=f16,v=f32)+full"), mixed_layout(), 0, 10), "canonical");
  has(message_of(known_record(10, "nonsense"), mixed_layout(), 0, 10), "nonsense");
  has(with([](MemoryRecord& r) { r.ranges.pop_back(); }), "one text range");
  has(with([](MemoryRecord& r) { r.ranges[5].end = 1000; }), "token 5 claims");
  has(with([](MemoryRecord& r) { r.ranges[5] = {-1, 3}; }), "token 5 claims");
  has(with([](MemoryRecord& r) { r.ranges[5] = {4, 3}; }), "token 5 claims");
  has(with([](MemoryRecord& r) { r.tokens[5] = -1; }), "token 5");
  has(with([](MemoryRecord& r) { r.text_begin_token = 11; }), "text_begin_token");
  has(with([](MemoryRecord& r) { r.chunk = -1; }), "chunk");
  has(with([](MemoryRecord& r) { r.model_path = "\xff"; }), "UTF-8");
  EXPECT_EQ(read_file(folder / "m.vmem"), "old");
  EXPECT_EQ(folder.n_entries(), 1u);
}

TEST(SaveMemory, RefusesARecordOfAnotherMemory) {
  const TempFolder folder;
  const MemoryRecord record = known_record(10);
  const ContextMemory memory = known_memory(record, mixed_layout());
  EXPECT_FALSE(save_memory(folder / "m.vmem", known_record(9), memory).ok());
  MemoryRecord other = record;
  other.tokens[3] += 1;
  EXPECT_FALSE(save_memory(folder / "m.vmem", other, memory).ok());
  other = known_record(10, "window(128)+kv(k=f16,v=f32)");
  EXPECT_FALSE(save_memory(folder / "m.vmem", other, memory).ok());
  EXPECT_EQ(folder.n_entries(), 0u);
}

}  // namespace
}  // namespace volvelle
