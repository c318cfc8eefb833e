// The GGUF reader on files built by hand, byte by byte: what is read, and that everything malformed
// is refused with one line; on real models too where they are present.
#include "volvelle/io/gguf.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "io/gguf_parser.hpp"
#include "unit/file_support.hpp"
#include "unit/gguf_builder.hpp"

namespace volvelle {
namespace {

using namespace testing::gguf;
using testing::as_bytes;
using testing::expect_one_line;
using testing::le;

Result<GgufFile> parse(const std::string& file) {
  return io::parse_gguf(as_bytes(file), "model.gguf");
}

TEST(Gguf, ReadsEveryValueType) {
  Model model;
  model.keys = {key("u8", kU8, "\xff"),
                key("i8", kI8, "\xff"),
                key("u16", kU16, "\xff\xff"),
                key("i16", kI16, "\xff\xff"),
                key("u32", kU32, le<std::uint32_t>(4000000000u)),
                key("i32", kI32, le<std::int32_t>(-2)),
                key("u64", kU64, le<std::uint64_t>(~0ull)),
                key("i64", kI64, le<std::int64_t>(-3)),
                key("f32", kF32, le(1.5f)),
                key("f64", kF64, le(-2.25)),
                key("bool", kBool, "\x01"),
                key("string", kString, text("a\nb")),
                key("strings", kArray, array(kString, 2, text("x") + text(""))),
                key("ints", kArray, array(kI16, 2, le<std::int16_t>(-5) + le<std::int16_t>(6))),
                key("floats", kArray, array(kF32, 1, le(0.5f))),
                key("bools", kArray, array(kBool, 2, std::string("\x01\x00", 2))),
                key("bytes", kArray, array(kU8, 3, "\x01\x02\xff")),
                key("none", kArray, array(kF64, 0, ""))};
  const auto file = parse(model.file());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->version, 3u);
  EXPECT_EQ(file->integer("u8"), 255);
  EXPECT_EQ(file->integer("i8"), -1);
  EXPECT_EQ(file->integer("u16"), 65535);
  EXPECT_EQ(file->integer("i16"), -1);
  EXPECT_EQ(file->integer("u32"), 4000000000);
  EXPECT_EQ(file->integer("i32"), -2);
  EXPECT_EQ(file->integer("u64"), std::nullopt);  // does not fit
  EXPECT_EQ(file->number("u64"), 18446744073709551616.0);
  EXPECT_EQ(file->integer("i64"), -3);
  EXPECT_EQ(file->integer("f32"), std::nullopt);
  EXPECT_EQ(file->number("f32"), 1.5);
  EXPECT_EQ(file->number("f64"), -2.25);
  EXPECT_EQ(file->integer("bool"), std::nullopt);
  EXPECT_EQ(std::get<bool>(file->metadata.at("bool")), true);
  EXPECT_EQ(file->string("string"), "a\nb");
  EXPECT_EQ(file->string("u8"), std::nullopt);
  EXPECT_EQ(file->string("missing"), std::nullopt);
  EXPECT_EQ(std::get<std::vector<std::string>>(file->metadata.at("strings")),
            (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(file->metadata.at("ints")),
            (std::vector<std::int64_t>{-5, 6}));
  EXPECT_EQ(std::get<std::vector<double>>(file->metadata.at("floats")), (std::vector<double>{0.5}));
  EXPECT_EQ(std::get<std::vector<bool>>(file->metadata.at("bools")),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(std::get<std::vector<std::uint64_t>>(file->metadata.at("bytes")),
            (std::vector<std::uint64_t>{1, 2, 255}));
  EXPECT_TRUE(std::get<std::vector<double>>(file->metadata.at("none")).empty());
}

TEST(Gguf, PlacesTensorsInTheFile) {
  const Model model = small_model();
  const auto file = parse(model.file());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const std::size_t data = model.file().size() - model.data.size();
  ASSERT_EQ(file->tensors.size(), 2u);
  EXPECT_EQ(file->tensors[0].name, "first");
  EXPECT_EQ(file->tensors[0].shape, (std::vector<std::uint64_t>{64, 3}));
  EXPECT_EQ(file->tensors[0].offset, data);
  EXPECT_EQ(file->tensors[0].bytes, 2u * 3 * 20);  // rows of 64 are 2 blocks of 20 bytes
  EXPECT_EQ(file->tensors[1].offset, data + 128);
  EXPECT_EQ(file->tensors[1].bytes, 20u);
  EXPECT_EQ(file->file_bytes, model.file().size());
}

TEST(Gguf, HonoursTheAlignmentKey) {
  Model model = small_model();
  model.alignment = 256;
  model.keys.push_back(key("general.alignment", kU32, le<std::uint32_t>(256)));
  model.tensors[1] = tensor("second", {5}, kTypeF32, 256);
  model.data = std::string(256 + 20, 'd');
  const auto file = parse(model.file());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors[0].offset % 256, 0u);
  EXPECT_EQ(file->tensors[1].offset + 20, file->file_bytes);
}

TEST(Gguf, RefusesMalformedKeys) {
  const auto with = [](const std::string& bad) {
    Model model = small_model();
    model.keys.push_back(bad);
    return model.file();
  };
  const auto alignment = [&](std::uint32_t n) {
    return with(key("general.alignment", kU32, le(n)));
  };
  struct Case {
    std::string file;
    std::string expected;
  };
  const Case cases[] = {
      {with(key("a.count", kU32, le<std::uint32_t>(7))), "'a.count': occurs twice"},
      {with(key("", kU32, le<std::uint32_t>(7))), "no name"},
      {with(key("k", 13, "")), "unknown value type 13"},
      {with(key("k", kBool, "\x02")), "boolean"},
      {with(key("k", kArray, array(kArray, 1, array(kU8, 1, "x")))), "arrays inside arrays"},
      {with(key("k", kArray, array(77, 1, "x"))), "unknown array type 77"},
      {with(key("k", kArray, array(kU8, ~0ull, "x"))), "array length"},
      {with(key("k", kArray, array(kF64, 40, "x"))), "array length"},
      {with(key("k", kArray, array(kString, 1000, ""))), "array length"},
      {with(key("k", kArray, array(kBool, 1, "\x07"))), "boolean"},
      {with(key("k", kString, le<std::uint64_t>(~0ull))), "declares 18446744073709551615 bytes"},
      {with(key("k", kArray, array(kString, 1, le<std::uint64_t>(1ull << 40)))),
       "declares 1099511627776 bytes"},
      {with(le<std::uint64_t>(1ull << 50)), "declares"},
      {alignment(0), "power of two"},
      {alignment(48), "power of two"},
      {alignment(1u << 31), "power of two"},
      {with(key("general.alignment", kU64, le<std::uint64_t>(32))), "u32"},
      {with(key("general.alignment", kString, text("32"))), "u32"},
      {with(key("general.alignment", kArray, array(kU32, 1, le<std::uint32_t>(32)))), "u32"},
  };
  for (const Case& test : cases) {
    const auto file = parse(test.file);
    ASSERT_FALSE(file.ok()) << test.expected;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(file.error().message.find(test.expected), std::string::npos)
        << test.expected << ": " << file.error().message;
    EXPECT_EQ(file.error().message.find("reading GGUF 'model.gguf': "), 0u);
    expect_one_line(file.error().message);
  }
}

TEST(Gguf, RefusesMalformedTensors) {
  const auto second = [](const std::string& bad) {
    Model model = small_model();
    model.tensors[1] = bad;
    return model.file();
  };
  const std::uint64_t big = 1ull << 32;
  struct Case {
    std::string file;
    std::string expected;
  };
  const Case cases[] = {
      {second(tensor("first", {5}, kTypeF32, 128)), "'first': occurs twice"},
      {second(tensor("", {5}, kTypeF32, 128)), "name of 1 to 63"},
      {second(tensor(std::string(64, 'n'), {5}, kTypeF32, 128)), "name of 1 to 63"},
      {second(tensor("t", {}, kTypeF32, 128)), "found 0"},
      {second(tensor("t", {1, 1, 1, 1, 1}, kTypeF32, 128)), "found 5"},
      {second(tensor("t", {5, 0}, kTypeF32, 128)), "non-zero"},
      {second(tensor("t", {big, big}, kTypeF32, 128)), "overflow"},
      {second(tensor("t", {big, big, big, big}, kTypeF32, 128)), "overflow"},
      {second(tensor("t", {1ull << 62}, kTypeF32, 128)), "more bytes than the file"},
      {second(tensor("t", {2'500'000'000}, kTypeF32, 128)), "more bytes than the file"},
      {second(tensor("t", {33}, kTypeQ4_1, 128)), "multiple of 32"},
      {second(tensor("t", {128}, kTypeQ6K, 128)), "multiple of 256"},
      {second(tensor("t", {5}, kTypeF32, 129)), "offset at a multiple of 32"},
      {second(tensor("t", {5}, kTypeF32, 160)), "inside the file"},
      {second(tensor("t", {5}, kTypeF32, ~0ull - 31)), "inside the file"},
      {second(tensor("t", {5}, kTypeF32, 96)), "'first' and 't' overlap"},
      {second(tensor("t", {5}, kTypeF32, 0)), "overlap"},
  };
  for (const Case& test : cases) {
    const auto file = parse(test.file);
    ASSERT_FALSE(file.ok()) << test.expected;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(file.error().message.find(test.expected), std::string::npos)
        << test.expected << ": " << file.error().message;
    expect_one_line(file.error().message);
  }
}

TEST(Gguf, RefusesUnknownTensorTypesByName) {
  for (const std::uint32_t type : {4u, 5u, 31u, 36u, 43u, 1000u, ~0u}) {
    Model model = small_model();
    model.tensors[1] = tensor("t", {5}, type, 128);
    const auto file = parse(model.file());
    ASSERT_FALSE(file.ok()) << type;
    EXPECT_EQ(file.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(file.error().message.find("type id " + std::to_string(type)), std::string::npos)
        << file.error().message;
    EXPECT_FALSE(ggml_type_info(type).has_value());
  }
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  const auto code = [](const std::string& file) {
    const auto result = parse(file);
    EXPECT_FALSE(result.ok());
    if (result.ok()) return ErrorCode::kEngine;
    expect_one_line(result.error().message);
    return result.error().code;
  };
  EXPECT_EQ(code(""), ErrorCode::kCorrupt);
  EXPECT_EQ(code("GGU"), ErrorCode::kCorrupt);
  EXPECT_EQ(code("GGML" + small_model().file().substr(4)), ErrorCode::kCorrupt);
  for (const std::uint32_t version : {0u, 1u, 4u, 0x03000000u}) {
    Model model = small_model();
    model.version = version;
    EXPECT_EQ(code(model.file()), ErrorCode::kUnsupported);
  }
  std::string counts = small_model().file();
  counts.replace(8, 8, le<std::uint64_t>(1ull << 60));  // tensors
  EXPECT_EQ(code(counts), ErrorCode::kCorrupt);
  counts = small_model().file();
  counts.replace(16, 8, le<std::uint64_t>(~0ull));  // keys
  EXPECT_EQ(code(counts), ErrorCode::kCorrupt);
}

TEST(Gguf, NamesThatAreNotTextAreShownEscaped) {
  struct Case {
    std::string name;
    std::string shown;
  };
  const Case cases[] = {
      {"a\nb", "'a\\x0ab'"},                // a line of its own
      {"\x1B[2J", "'\\x1b[2J'"},            // a terminal's command
      {"\xFF\xFE", "'\\xff\\xfe'"},         // bytes that no text has
      {"\xE2\x82", "'\\xe2\\x82'"},         // a character that was cut
      {"\xC2\x9B", "'\\xc2\\x9b'"},         // a control character of two bytes
      {"\xED\xA0\x80", "\\xed\\xa0\\x80"},  // half of a surrogate pair
      {"a\\b", "'a\\x5cb'"},                // so that no text looks like an escaped one
      {"gr\xC3\xBC\xC3\x9F", "'gr\xC3\xBC\xC3\x9F'"},
  };
  for (const Case& test : cases) {
    Model twice = small_model();
    for (int i = 0; i < 2; ++i) twice.keys.push_back(key(test.name, kBool, std::string(1, '\1')));
    Model empty = small_model();
    empty.tensors[1] = tensor(test.name, {0}, kTypeF32, 128);
    for (const Model& model : {twice, empty}) {
      const auto file = parse(model.file());
      ASSERT_FALSE(file.ok());
      EXPECT_NE(file.error().message.find(test.shown), std::string::npos) << file.error().message;
      expect_one_line(file.error().message);
    }
  }
}

TEST(Gguf, AHeaderAloneIsAnEmptyFile) {
  Model model;
  const auto file = parse(model.file());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->metadata.empty());
  EXPECT_TRUE(file->tensors.empty());
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string whole = small_model().file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto file = parse(whole.substr(0, size));
    ASSERT_FALSE(file.ok()) << size;
    expect_one_line(file.error().message);
  }
}

TEST(Gguf, RandomDamageIsNeverBelieved) {
  const std::string good = small_model().file();
  std::mt19937 rng(4);
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bad = good;
    for (std::uint32_t n = 1 + rng() % 4; n > 0; --n)
      bad[rng() % bad.size()] = static_cast<char>(rng());
    const auto file = parse(bad);
    if (!file.ok()) {
      ++refused;
      expect_one_line(file.error().message);
      continue;
    }
    for (const GgufTensor& t : file->tensors) ASSERT_LE(t.offset + t.bytes, bad.size());
  }
  EXPECT_GT(refused, 5000);
}

TEST(Gguf, LargeVocabulariesAreFast) {
  constexpr std::uint64_t kTokens = 50000;
  std::string tokens, types;
  for (std::uint64_t i = 0; i < kTokens; ++i) {
    tokens += text("token " + std::to_string(i));
    types += le<std::int32_t>(static_cast<std::int32_t>(i % 7));
  }
  Model model;
  model.keys = {key("tokens", kArray, array(kString, kTokens, tokens)),
                key("types", kArray, array(kI32, kTokens, types))};
  const std::string bytes = model.file();
  const auto start = std::chrono::steady_clock::now();
  const auto file = parse(bytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(std::get<std::vector<std::string>>(file->metadata.at("tokens"))[49999], "token 49999");
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(file->metadata.at("types"))[8], 1);
  EXPECT_LT(took.count(), 2.0);  // milliseconds; quadratic work would take minutes
}

TEST(Gguf, TypeTableFitsTheFormat) {
  const auto q4_1 = ggml_type_info(kTypeQ4_1);
  ASSERT_TRUE(q4_1.has_value());
  EXPECT_EQ(q4_1->name, "q4_1");
  // Bits of each weight as the formats define them: b-bit codes plus scales of 16 bits a block.
  EXPECT_EQ(q4_1->block_bytes, 32u * 4 / 8 + 2 + 2);
  EXPECT_EQ(ggml_type_info(8)->block_bytes, 32u + 2);                       // q8_0
  EXPECT_EQ(ggml_type_info(kTypeQ6K)->block_bytes, 256u * 6 / 8 + 16 + 2);  // 16 scales of 8 bits
  EXPECT_EQ(ggml_type_info(30)->name, "bf16");
}

TEST(Gguf, ReadsRealModels) {
  const char* const cache = std::getenv("VOLVELLE_CACHE");
  const char* const home = std::getenv("HOME");
  std::filesystem::path folder =
      cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/volvelle";
  folder /= "models";
  int read = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".gguf") continue;
    const auto file = read_gguf(entry.path());
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE(file->string("general.architecture").has_value()) << entry.path();
    EXPECT_FALSE(file->tensors.empty());
    ++read;
  }
  if (read == 0) GTEST_SKIP() << "no models in " << folder;
}

TEST(Gguf, ReadsFilesFromDisk) {
  const testing::TempFolder folder;
  testing::write_file(folder / "m.gguf", small_model().file());
  const auto file = read_gguf(folder / "m.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->path, folder / "m.gguf");
  EXPECT_EQ(file->string("general.name"), "tiny");
  EXPECT_EQ(read_gguf(folder / "none.gguf").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_gguf(folder.path()).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace volvelle
