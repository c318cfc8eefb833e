// The safetensors container: files built by hand are read, files written are checked byte by byte
// with a parser of their own, and everything malformed is refused with one line.
#include "volvelle/io/safetensors.hpp"

#include <gtest/gtest.h>

#include <random>

#include "unit/file_support.hpp"

namespace volvelle {
namespace {

using testing::as_bytes;
using testing::expect_one_line;
using testing::le;
using testing::le_at;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

std::string container(const std::string& json, const std::string& data) {
  return le<std::uint64_t>(json.size()) + json + data;
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors(as_bytes(file));
}

TEST(Safetensors, ReadsAFileBuiltByHand) {
  const auto header = parse(container(
      R"({"b":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("__metadata__":{"k":"v\u00e9\n"},"a":{"data_offsets":[0,4],"shape":[],"dtype":"I32"},)"
      R"("none":{"dtype":"U8","shape":[0,7],"data_offsets":[4,4]}}  )",
      std::string(16, 'd')));
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"k", "v\xc3\xa9\n"}}));
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_TRUE(header->tensors[0].shape.empty());
  EXPECT_EQ(header->tensors[1].name, "none");
  EXPECT_EQ(header->tensors[2].name, "b");
  EXPECT_EQ(header->tensors[2].shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(header->tensors[2].begin, 4u);
  EXPECT_EQ(header->tensors[2].end, 16u);
  EXPECT_EQ(header->find("b"), &header->tensors[2]);
  EXPECT_EQ(header->find("c"), nullptr);
  EXPECT_TRUE(parse(container("{}", "")).ok());
}

TEST(Safetensors, RefusesMalformedFiles) {
  const std::string u8 = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto one = [](const std::string& fields) {
    return container(R"({"a":{)" + fields + "}}", "1234");
  };
  const auto depth = [](std::string start) { return start.append(100000, '['); };
  const auto shape_of = [](int n) {
    std::string shape = R"("shape":[1)";
    while (--n > 0) shape += ",1";
    return shape + "]";
  };
  struct Case {
    const char* name;
    std::string file;
    std::string expected;  // part of the message
  };
  const Case cases[] = {
      {"empty", "", "0 bytes"},
      {"seven bytes", "1234567", "7 bytes"},
      {"length over the limit", le<std::uint64_t>(100'000'001) + "{}", "limit"},
      {"huge length", le<std::uint64_t>(~0ull) + "{}", "limit"},
      {"length past the end", le<std::uint64_t>(3) + "{}", "3 bytes"},
      {"no header", le<std::uint64_t>(0), "'{'"},
      {"space first", container(" {}", ""), "'{'"},
      {"not JSON", container("{\"a\"", ""), "JSON"},
      {"text behind the JSON", container("{} x", ""), "JSON"},
      {"zero behind the JSON", container(std::string("{}\0", 3), ""), "JSON"},
      {"not UTF-8", container("{\"\xff\":1}", ""), "JSON"},
      {"comment", container("{/**/}", ""), "JSON"},
      {"tensor is a number", container(R"({"a":1})", ""), "number"},
      {"tensor is null", container(R"({"a":null})", ""), "null"},
      {"tensor is a list", container(R"({"a":[]})", ""), "array"},
      {"deep nesting", container(depth(R"({"a":)"), ""), "array"},
      {"deep shape", one(depth(R"("shape":)")), "array"},
      {"metadata value no string", container(R"({"__metadata__":{"a":1}})", ""), "number"},
      {"metadata nested", container(R"({"__metadata__":{"a":{}}})", ""), "object"},
      {"tensor twice", container(u8 + "," + u8.substr(1) + "}", "1234"), "twice"},
      {"metadata twice", container(R"({"__metadata__":{},"__metadata__":{}})", ""), "twice"},
      {"metadata key twice", container(R"({"__metadata__":{"a":"","a":""}})", ""), "twice"},
      {"field twice", one(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"),
       "twice"},
      {"unknown field", one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1)"),
       "unknown field"},
      {"no dtype", one(R"("shape":[4],"data_offsets":[0,4])"), "expected dtype"},
      {"no shape", one(R"("dtype":"U8","data_offsets":[0,4])"), "expected dtype"},
      {"no offsets", one(R"("dtype":"U8","shape":[4])"), "expected dtype"},
      {"one offset", one(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "two data_offsets"},
      {"three offsets", one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"),
       "two data_offsets"},
      {"unknown dtype", one(R"("dtype":"U9","shape":[4],"data_offsets":[0,4])"), "unknown dtype"},
      {"negative dimension", one(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), "negative"},
      {"fractional dimension", one(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"),
       "integer"},
      {"33 dimensions", one(shape_of(33)), "more than 32"},
      {"size of another shape", one(R"("dtype":"U16","shape":[4],"data_offsets":[0,4])"),
       "8 bytes"},
      {"end before begin", one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "[4, 0)"},
      {"overflow", one(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
       "overflow"},
      {"overflow to the right size",
       one(R"("dtype":"U8","shape":[4611686018427387905,4],"data_offsets":[0,4])"), "overflow"},
      {"ten gigabytes", one(R"("dtype":"U8","shape":[10000000000],"data_offsets":[0,10000000000])"),
       "10000000000 bytes of data, found 4"},
      {"gap at the front", one(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "begin at 0"},
      {"data left over", one(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"),
       "3 bytes of data, found 4"},
      {"data without tensors", container("{}", "1"), "0 bytes of data, found 1"},
      {"overlap",
       container(u8 + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", "123456"),
       "begin at 4"},
  };
  for (const Case& test : cases) {
    const auto header = parse(test.file);
    ASSERT_FALSE(header.ok()) << test.name;
    EXPECT_EQ(header.error().code, ErrorCode::kCorrupt) << test.name;
    EXPECT_NE(header.error().message.find(test.expected), std::string::npos)
        << test.name << ": " << header.error().message;
    expect_one_line(header.error().message);
  }
}

TEST(Safetensors, MessagesStayOnOneShortLine) {
  const std::string name = std::string("evil\\n\\u001b[2J").append(5000, 'x');
  const auto header = parse(
      container("{\"" + name + "\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}}", ""));
  ASSERT_FALSE(header.ok());
  expect_one_line(header.error().message);
  EXPECT_LT(header.error().message.size(), 300u);
}

TEST(Safetensors, LayoutAlignsEveryTensor) {
  std::mt19937 rng(2);
  for (const std::uint64_t alignment : {1, 8, 64, 4096}) {
    std::vector<TensorEntry> tensors;
    for (int i = 0; i < 12; ++i)
      tensors.push_back(
          {std::string(1, static_cast<char>('a' + i)), "U16", {rng() % 100, rng() % 5}, 0, 0});
    const auto header = layout_safetensors({{"key", "\"quoted\"\n"}}, tensors, alignment);
    ASSERT_TRUE(header.ok());
    EXPECT_EQ(header->data_offset % alignment, 0u);
    std::uint64_t at = 0;
    std::size_t next = 0;
    for (const TensorEntry& entry : header->tensors) {
      EXPECT_EQ(entry.begin, at);
      at = entry.end;
      if (entry.name.starts_with("_fill.")) continue;
      EXPECT_EQ(entry.name, tensors[next++].name);  // the given order
      EXPECT_EQ(entry.begin % alignment, 0u);
    }
    EXPECT_EQ(next, tensors.size());

    // The reader agrees with the writer about everything.
    const std::string head = serialize_header(*header);
    EXPECT_EQ(head.size(), header->data_offset);
    const auto again = parse(head + std::string(file_size(*header) - head.size(), '\0'));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again->metadata, header->metadata);
    EXPECT_EQ(serialize_header(*again).size(), head.size());
    for (const TensorEntry& entry : header->tensors) {
      const TensorEntry* const read = again->find(entry.name);
      ASSERT_NE(read, nullptr);
      EXPECT_EQ(read->shape, entry.shape);
      EXPECT_EQ(read->begin, entry.begin);
      EXPECT_EQ(read->end, entry.end);
    }
  }
}

TEST(Safetensors, LayoutRefusesWhatCanNotBeWritten) {
  struct Case {
    std::map<std::string, std::string> metadata;
    std::vector<TensorEntry> tensors;
    std::uint64_t alignment;
    std::string expected;
  };
  const TensorEntry good{"a", "U8", {4}, 0, 0};
  const Case cases[] = {
      {{}, {good}, 0, "power of two"},
      {{}, {good}, 48, "power of two"},
      {{{"k", "\xff"}}, {good}, 64, "UTF-8"},
      {{}, {good, good}, 64, "twice"},
      {{}, {{"_fill.0", "U8", {4}, 0, 0}}, 64, "reserved"},
      {{}, {{"__metadata__", "U8", {4}, 0, 0}}, 64, "reserved"},
      {{}, {{"a\xff", "U8", {4}, 0, 0}}, 64, "UTF-8"},
      {{}, {{"a", "q4_0", {4}, 0, 0}}, 64, "dtype"},
      {{}, {{"a", "F64", {1ull << 61, 2}, 0, 0}}, 64, "overflow"},
      {{}, {{"a", "U8", {~0ull}, 0, 0}, {"b", "U8", {1}, 0, 0}}, 64, "overflow"},
      {{}, {{"a", "U8", {~0ull}, 0, 0}}, 64, "overflow"},
  };
  for (const Case& test : cases) {
    const auto header = layout_safetensors(test.metadata, test.tensors, test.alignment);
    ASSERT_FALSE(header.ok()) << test.expected;
    EXPECT_NE(header.error().message.find(test.expected), std::string::npos)
        << header.error().message;
    expect_one_line(header.error().message);
  }
}

TEST(Safetensors, SerializingAForeignHeaderIsABug) {
  SafetensorsHeader header;
  header.tensors.push_back({"a", "U8", {0}, 0, 0});
  header.data_offset = 9;  // too small for its JSON
  EXPECT_THROW(serialize_header(header), std::logic_error);
}

TEST(Safetensors, WrittenFilesHaveTheExpectedBytes) {
  const TempFolder folder;
  const std::string a = le<float>(1.5f) + le<float>(-2.0f), b = "xyz";
  const TensorData tensors[] = {{{"a", "F32", {2, 1}, 0, 0}, as_bytes(a)},
                                {{"b", "U8", {3}, 0, 0}, as_bytes(b)}};
  ASSERT_TRUE(write_safetensors(folder / "f", {{"m", "1"}}, tensors).ok());
  const std::string file = read_file(folder / "f");
  const std::string json =
      R"({"__metadata__":{"m":"1"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("_fill.0":{"dtype":"U8","shape":[56],"data_offsets":[8,64]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[64,67]}})";
  const std::size_t data = (8 + json.size() + 63) / 64 * 64;
  EXPECT_EQ(le_at<std::uint64_t>(file, 0), data - 8);
  EXPECT_EQ(file.substr(8, json.size()), json);
  EXPECT_EQ(file.substr(8 + json.size(), data - 8 - json.size()),
            std::string(data - 8 - json.size(), ' '));
  EXPECT_EQ(file.substr(data), a + std::string(56, '\0') + b);
}

TEST(Safetensors, DataOfTheWrongSizeIsRefusedBeforeAnythingIsWritten) {
  const TempFolder folder;
  write_file(folder / "f", "old");
  const std::string short_data = "xy";
  const TensorData tensors[] = {{{"b", "U8", {3}, 0, 0}, as_bytes(short_data)}};
  const Status status = write_safetensors(folder / "f", {}, tensors);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_file(folder / "f"), "old");
}

// Damage of any kind must give an error or a header that still fits the file; never a crash.
TEST(Safetensors, RandomDamageIsNeverBelieved) {
  const auto made =
      layout_safetensors({{"k", "v"}}, {{"a", "F32", {3, 5}, 0, 0}, {"b", "I64", {7}, 0, 0}}, 64);
  ASSERT_TRUE(made.ok());
  const std::string good = serialize_header(*made) + std::string(made->tensors.back().end, 'd');
  std::mt19937 rng(3);
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bad = good;
    for (std::uint32_t n = 1 + rng() % 4; n > 0; --n)
      bad[rng() % made->data_offset] = static_cast<char>(rng());
    if (rng() % 4 == 0) bad.resize(rng() % bad.size());
    const auto header = parse(bad);
    if (!header.ok()) {
      ++refused;
      expect_one_line(header.error().message);
      continue;
    }
    ASSERT_EQ(file_size(*header), bad.size());
    for (const TensorEntry& entry : header->tensors)
      ASSERT_LE(entry.end, bad.size() - header->data_offset);
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace volvelle
