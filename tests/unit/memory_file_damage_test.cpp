// Bad memory files: cut short, with flipped bits, made by something else, made by a newer version,
// or inconsistent behind good checks. Each is refused with one line, by open() or by verify_rows().
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "unit/memory_file_support.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle {
namespace {

using testing::expect_one_line;
using testing::known_memory;
using testing::known_record;
using testing::le;
using testing::mixed_layout;
using testing::Parts;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

/// The error of opening and verifying; fails the test if there is none.
Error refusal(const std::filesystem::path& path) {
  auto file = MemoryFile::open(path);
  if (!file.ok()) {
    expect_one_line(file.error().message);
    return file.error();
  }
  const Status rows = file->verify_rows();
  if (!rows.ok()) {
    expect_one_line(rows.error().message);
    EXPECT_THROW((void)file->restore(), std::logic_error);
    return rows.error();
  }
  ADD_FAILURE() << "a bad file was accepted";
  return {ErrorCode::kEngine, ""};
}

class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const MemoryRecord record = known_record(2500);
    ASSERT_TRUE(save_memory(path(), record, known_memory(record, mixed_layout())).ok());
    good_ = read_file(path());
    header_ = parse_safetensors(testing::as_bytes(good_)).value();
  }
  std::filesystem::path path() const { return folder_ / "m.vmem"; }
  Error refusal_of(const std::string& bytes) {
    write_file(path(), bytes);
    return refusal(path());
  }

  TempFolder folder_;
  std::string good_;
  SafetensorsHeader header_;
};

TEST_F(DamageTest, EveryFlippedBitIsSeen) {
  // Strata: length field, JSON, padding, every tensor with all fillers, the last byte.
  struct Stratum {
    std::string name;
    std::uint64_t begin, end;
  };
  const std::uint64_t data = header_.data_offset;
  const std::uint64_t json_end = good_.find_last_of('}', data) + 1;
  std::vector<Stratum> strata{{"length", 0, 8},
                              {"json", 8, json_end},
                              {"padding", json_end, data},
                              {"last byte", good_.size() - 1, good_.size()}};
  for (const TensorEntry& entry : header_.tensors)
    strata.push_back({entry.name, data + entry.begin, data + entry.end});
  std::erase_if(strata, [](const Stratum& s) { return s.begin == s.end; });
  ASSERT_GE(strata.size(), 16u);

  const int fd = ::open(path().c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  std::mt19937_64 rng(5);
  constexpr int kFlips = 400;  // at least 10 in every stratum
  for (int i = 0; i < kFlips; ++i) {
    const Stratum& stratum = strata[static_cast<std::size_t>(i) % strata.size()];
    const std::uint64_t at = stratum.begin + rng() % (stratum.end - stratum.begin);
    const char flipped = static_cast<char>(good_[at] ^ (1 << (rng() % 8)));
    ASSERT_EQ(::pwrite(fd, &flipped, 1, static_cast<off_t>(at)), 1);
    const Error error = refusal(path());
    EXPECT_TRUE(error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kUnsupported)
        << stratum.name << " byte " << at << ": " << error.message;
    ASSERT_EQ(::pwrite(fd, &good_[at], 1, static_cast<off_t>(at)), 1);
  }
  ::close(fd);
  auto file = MemoryFile::open(path());  // all flips undone: the file is good again
  ASSERT_TRUE(file.ok() && file->verify_rows().ok());
}

TEST_F(DamageTest, EveryTruncationIsSeen) {
  std::vector<std::uint64_t> sizes{0,
                                   1,
                                   7,
                                   8,
                                   9,
                                   100,
                                   header_.data_offset - 1,
                                   header_.data_offset,
                                   good_.size() - 1,
                                   good_.size() - 16,
                                   good_.size() / 2};
  for (const TensorEntry& entry : header_.tensors) {
    sizes.push_back(header_.data_offset + entry.begin + 1);
    if (entry.end != header_.tensors.back().end) sizes.push_back(header_.data_offset + entry.end);
  }
  for (const std::uint64_t size : sizes) {
    const Error error = refusal_of(good_.substr(0, size));
    EXPECT_EQ(error.code, ErrorCode::kCorrupt) << size;
    EXPECT_EQ(error.message.find("opening memory "), 0u) << error.message;
    // From the first byte of the JSON on it can be seen what it was.
    EXPECT_EQ(error.message.find("read the text again") != std::string::npos, size > 8)
        << error.message;
  }
  EXPECT_EQ(refusal_of(good_ + "x").code, ErrorCode::kCorrupt);
  EXPECT_EQ(refusal_of(good_ + good_).code, ErrorCode::kCorrupt);
}

TEST_F(DamageTest, SwappedBlocksAreSeen) {
  std::string bytes = good_;
  const std::uint64_t data = header_.data_offset;
  constexpr std::size_t kMiB = 1 << 20;
  ASSERT_GT(good_.size(), data + kMiB + 100000);
  std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(data),
                   bytes.begin() + static_cast<std::ptrdiff_t>(data + 100000),
                   bytes.begin() + static_cast<std::ptrdiff_t>(data + kMiB));
  EXPECT_EQ(refusal_of(bytes).code, ErrorCode::kCorrupt);
}

TEST_F(DamageTest, OtherFilesAreNotMemories) {
  const auto expect_foreign = [](const Error& error, const std::string& kind) {
    EXPECT_EQ(error.code, ErrorCode::kCorrupt);
    EXPECT_NE(error.message.find("not a memory file, it is " + kind), std::string::npos)
        << error.message;
    EXPECT_EQ(error.message.find("read the text again"), std::string::npos) << error.message;
  };
  const std::string no_header = "a file that does not begin with a header length";
  expect_foreign(refusal_of(""), "an empty file");
  expect_foreign(refusal_of("text"), "a file of 4 bytes");
  expect_foreign(refusal_of("GGUF" + std::string(1000, '\3')), "a GGUF model");
  expect_foreign(refusal_of("PK\3\4" + std::string(1000, 'z')), "a zip archive");
  expect_foreign(refusal_of(std::string(100, '\0')), no_header);
  expect_foreign(refusal_of("It is a truth universally acknowledged"), no_header);
  expect_foreign(refusal_of("{\"json\": {\"nested\": 1}}"), no_header);
  expect_foreign(refusal_of(le(std::uint64_t{20}) + std::string(20, 'x')), no_header);
  const std::string four = "1234";
  const TensorData plain[] = {{{"a", "U8", {4}, 0, 0}, testing::as_bytes(four)}};
  ASSERT_TRUE(write_safetensors(path(), {}, plain).ok());
  expect_foreign(refusal(path()), "a safetensors file without 'volvelle_format'");
  ASSERT_TRUE(write_safetensors(path(), {{"volvelle_format", "1"}}, plain).ok());
  EXPECT_NE(refusal(path()).message.find("'checks'"), std::string::npos);
  EXPECT_EQ(refusal(folder_.path()).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(folder_ / "missing").code, ErrorCode::kNotFound);
}

TEST_F(DamageTest, NewerVersionsAreNamed) {
  Parts parts(good_);
  parts.header.metadata["volvelle_format"] = "4";
  const Error error = refusal_of(parts.join());
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_NE(error.message.find("format 4, written by a newer version"), std::string::npos)
      << error.message;
}

TEST_F(DamageTest, ADeclaredTenGigabyteTensorAllocatesNothing) {
  Parts parts(good_);
  for (TensorEntry& entry : parts.header.tensors) {
    if (entry.name != "layer.1.k") continue;
    entry.shape = {1, 625000000, 8};
    entry.end = entry.begin + 10000000000;
  }
  const Error error = refusal_of(serialize_header(parts.header) + parts.data);
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
}

TEST_F(DamageTest, InconsistentMetadataIsRefusedBehindGoodChecks) {
  struct Case {
    std::string key, value, expected;
  };
  const Case cases[] = {
      {"n_tokens", "2499", "tensors"},
      {"n_tokens", "-1", "whole number"},
      {"n_tokens", "2500 ", "whole number"},
      {"n_tokens", "02500", "whole number"},
      {"n_tokens", "99999999999999999999", "whole number"},
      {"chunk", "x", "whole number"},
      {"text_begin_token", "2501", "text_begin_token"},
      {"k_type", "f32", "layer.0.k"},
      {"v_type", "q7", "unknown element type"},
      {"volvelle_format", "0", "version 0"},
      {"volvelle_format", "one", "whole number"},
      {"extra", "1", "keys"},
  };
  for (const Case& test : cases) {
    Parts parts(good_);
    parts.header.metadata[test.key] = test.value;
    const Error error = refusal_of(parts.join());
    EXPECT_EQ(error.code, ErrorCode::kCorrupt);
    EXPECT_NE(error.message.find(test.expected), std::string::npos)
        << test.key << ": " << error.message;
  }
  for (const char* key : {"spec", "rope", "template_hash", "n_tokens", "k_type"}) {
    Parts parts(good_);
    parts.header.metadata.erase(key);
    EXPECT_NE(refusal_of(parts.join()).message.find("is missing"), std::string::npos);
  }
}

TEST_F(DamageTest, InconsistentTensorsAreRefusedBehindGoodChecks) {
  const auto rename = [&](const std::string& from, const std::string& to) {
    Parts parts(good_);
    for (TensorEntry& entry : parts.header.tensors) {
      if (entry.name == from) entry.name = to;
    }
    return refusal_of(parts.join());
  };
  EXPECT_EQ(rename("tokens", "other").code, ErrorCode::kCorrupt);
  EXPECT_EQ(rename("row_positions", "other").code, ErrorCode::kCorrupt);
  EXPECT_EQ(rename("layer.0.k", "layer.7.k").code, ErrorCode::kCorrupt);
  EXPECT_EQ(rename("layer.2.v", "layer.3.v").code, ErrorCode::kCorrupt);
  EXPECT_EQ(rename("_fill.0", "fill").code, ErrorCode::kCorrupt);
  EXPECT_EQ(rename("checks", "sums").code, ErrorCode::kCorrupt);
  for (const char* name :
       {"tokens", "layer.0.k", "layer.1.v", "ranges"}) {  // same bytes, other shape
    Parts parts(good_);
    for (TensorEntry& entry : parts.header.tensors) {
      if (entry.name == name) entry.shape.push_back(1);
    }
    EXPECT_EQ(refusal_of(parts.join()).code, ErrorCode::kCorrupt) << name;
  }
  Parts swapped(good_);
  for (TensorEntry& entry : swapped.header.tensors) {
    if (entry.name == "layer.1.k") std::swap(entry.shape[0], entry.shape[2]);  // 8 heads of 1
  }
  EXPECT_EQ(refusal_of(swapped.join()).code, ErrorCode::kCorrupt);
}

TEST_F(DamageTest, InconsistentContentsAreRefusedBehindGoodChecks) {
  const auto with = [&](const char* name, std::size_t index, auto value) {
    Parts parts(good_);
    parts.put(name, index, value);
    return refusal_of(parts.join()).message;
  };
  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(with("tokens", 7, std::int32_t{-5}), "token 7 has the id -5");
  has(with("ranges", 2 * 9 + 1, std::int64_t{7495}), "token 9 claims");
  has(with("ranges", 2 * 9, std::int64_t{-1}), "token 9 claims");
  has(with("ranges", 2 * 9 + 1, std::int64_t{0}), "token 9 claims");
  has(with("row_positions", 100, std::int64_t{99}), "row 100 is at position 99");
  has(with("row_positions", 0, std::int64_t{-1}), "row 0 is at position -1");
  has(with("row_positions", 2499, std::int64_t{2500}), "row 2499 is at position 2500");
}

TEST_F(DamageTest, ARefusedFileLeavesTheSessionAsItWas) {
  auto file = MemoryFile::open(path());
  ASSERT_TRUE(file.ok() && file->verify_rows().ok());
  const auto memory = file->restore();
  ASSERT_TRUE(memory.ok());
  write_file(folder_ / "bad.vmem", good_.substr(0, good_.size() - 100));
  EXPECT_EQ(refusal(folder_ / "bad.vmem").code, ErrorCode::kCorrupt);
  testing::expect_known_rows(*memory);
}

TEST(CheckedFile, ManyThreadsFindTheFirstDamagedBlock) {
  // Enough blocks that several threads share the work.
  std::string header = "head", data(140 << 20, '\0'), sums;
  for (std::size_t i = 0; i < data.size(); i += 4096) data[i] = static_cast<char>(i >> 12);
  sums.resize(kCheckBytes * (1 + n_check_blocks(data.size())));
  const auto bytes = [](std::string& s) {
    return std::as_writable_bytes(std::span(s.data(), s.size()));
  };
  compute_checks(bytes(header), bytes(data), bytes(sums), {});
  const CheckedFile checked{bytes(header), bytes(data), bytes(sums)};
  EXPECT_TRUE(checked.header_matches());
  EXPECT_EQ(checked.first_damaged(0, checked.n_blocks(), {}), std::nullopt);
  data[(std::size_t{131} << 20) + 5] ^= 1;
  data[(std::size_t{77} << 20)] ^= 1;
  EXPECT_EQ(checked.first_damaged(0, checked.n_blocks(), {}), 77u);
  EXPECT_EQ(checked.first_damaged(78, checked.n_blocks(), {}), 131u);
  EXPECT_EQ(checked.first_damaged(78, 131, {}), std::nullopt);
  header[0] = 'H';
  EXPECT_FALSE(checked.header_matches());
}

}  // namespace
}  // namespace volvelle
