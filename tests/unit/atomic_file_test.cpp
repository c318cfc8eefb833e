// Atomic writes: a target is the old file or the complete new one, never anything else, and nothing
// is left behind; and reading of text files.
#include "volvelle/io/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "unit/file_support.hpp"

namespace volvelle {
namespace {

using testing::as_bytes;
using testing::expect_one_line;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

void fill(AtomicFile& file, char c) {
  std::fill(file.bytes().begin(), file.bytes().end(), static_cast<std::byte>(c));
}

TEST(AtomicFile, CommitPutsTheFileInPlace) {
  const TempFolder folder;
  auto file = AtomicFile::create(folder / "a", 100000);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_EQ(file->bytes().size(), 100000u);
  EXPECT_EQ(file->bytes()[99999], std::byte{0});
  fill(*file, 'x');
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(read_file(folder / "a"), std::string(100000, 'x'));
  EXPECT_EQ(folder.n_entries(), 1u);
}

TEST(AtomicFile, OnlyTheOwnerMayRead) {
  const TempFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", as_bytes("text")).ok());
  struct stat info {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(AtomicFile, WithoutCommitNothingHappens) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  std::shared_ptr<void> owner;
  {
    auto file = AtomicFile::create(folder / "a", 5000);
    ASSERT_TRUE(file.ok());
    fill(*file, 'x');
    owner = file->owner();
    EXPECT_EQ(folder.n_entries(), 2u);
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(folder.n_entries(), 1u);
  EXPECT_EQ(static_cast<const char*>(owner.get())[4999], 'x');  // the mapping outlives the file
}

TEST(AtomicFile, MovesKeepOneTemporaryFile) {
  const TempFolder folder;
  auto first = AtomicFile::create(folder / "a", 10);
  auto second = AtomicFile::create(folder / "b", 10);
  ASSERT_TRUE(first.ok() && second.ok());
  *first = std::move(*second);  // the first one's temporary file goes
  EXPECT_EQ(folder.n_entries(), 1u);
  ASSERT_TRUE(first->commit().ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_TRUE(std::filesystem::exists(folder / "b"));
}

TEST(AtomicFile, EmptyFilesCanBeWritten) {
  const TempFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", {}).ok());
  EXPECT_EQ(read_file(folder / "a"), "");
}

TEST(AtomicFile, LongNamesFit) {
  const TempFolder folder;
  const std::string name(255, 'n');
  ASSERT_TRUE(write_file_atomically(folder / name, as_bytes("text")).ok());
  EXPECT_EQ(read_file(folder / name), "text");
}

TEST(AtomicFile, TwoWritersLeaveOneWholeFile) {
  const TempFolder folder;
  const auto write_often = [&](char c) {
    for (int i = 0; i < 20; ++i) {
      const std::string text(50000, c);
      EXPECT_TRUE(write_file_atomically(folder / "a", as_bytes(text)).ok());
      const std::string seen = read_file(folder / "a");
      EXPECT_TRUE(seen == std::string(50000, 'x') || seen == std::string(50000, 'y'));
    }
  };
  std::thread other(write_often, 'x');
  write_often('y');
  other.join();
  EXPECT_EQ(folder.n_entries(), 1u);
}

TEST(AtomicFile, RefusesTargetsThatAreNoFiles) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "sub");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  write_file(folder / "plain", "old");
  struct Case {
    std::filesystem::path target;
    ErrorCode code;
    std::string expected;
  };
  const Case cases[] = {
      {folder / "sub", ErrorCode::kInvalidArgument, "folder"},
      {folder / "sub/", ErrorCode::kInvalidArgument, "folder"},
      {folder / "missing/a", ErrorCode::kNotFound, "create it first"},
      {folder / "plain/a", ErrorCode::kInvalidArgument, "not a folder"},
      {folder / "pipe", ErrorCode::kInvalidArgument, "pipe"},
      {"/dev/null", ErrorCode::kInvalidArgument, "device"},
      {"", ErrorCode::kInvalidArgument, "no file name"},
  };
  for (const Case& test : cases) {
    const auto file = AtomicFile::create(test.target, 10);
    ASSERT_FALSE(file.ok()) << test.target;
    EXPECT_EQ(file.error().code, test.code) << file.error().message;
    EXPECT_NE(file.error().message.find(test.expected), std::string::npos) << file.error().message;
    EXPECT_EQ(file.error().message.find("writing "), 0u);
    expect_one_line(file.error().message);
  }
  EXPECT_EQ(folder.n_entries(), 3u);
}

TEST(AtomicFile, RefusesFoldersThatCanNotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "the superuser may write everywhere";
  const TempFolder folder;
  std::filesystem::create_directory(folder / "sub");
  std::filesystem::permissions(folder / "sub", std::filesystem::perms::owner_read);
  const auto file = AtomicFile::create(folder / "sub/a", 10);
  std::filesystem::permissions(folder / "sub", std::filesystem::perms::owner_all);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("not writable"), std::string::npos) << file.error().message;
}

TEST(AtomicFile, TooLittleSpaceNamesBothNumbersAndLeavesNothing) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  for (const std::uint64_t size : {std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    const auto file = AtomicFile::create(folder / "a", size);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::kIo);
    const std::string& message = file.error().message;
    EXPECT_NE(message.find("needed " + std::to_string(size) + " bytes, available "),
              std::string::npos)
        << message;
    expect_one_line(message);
  }
  EXPECT_EQ(folder.n_entries(), 1u);
  EXPECT_EQ(read_file(folder / "a"), "old");
}

TEST(ReadTextFile, ReturnsTheBytes) {
  const TempFolder folder;
  const std::string text = std::string("line\r\n\0\xff", 8) + std::string(3 << 20, 'z');
  write_file(folder / "a", text);
  const auto read = read_text_file(folder / "a");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, text);
  write_file(folder / "empty", "");
  ASSERT_TRUE(read_text_file(folder / "empty").ok());
  EXPECT_EQ(*read_text_file(folder / "empty"), "");
}

TEST(ReadTextFile, ReadsPipes) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const std::string text(200000, 'p');
  std::thread writer([&] { write_file(folder / "pipe", text); });
  const auto read = read_text_file(folder / "pipe");
  writer.join();
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, text);
}

TEST(ReadTextFile, RefusesWhatIsNoText) {
  const TempFolder folder;
  const auto missing = read_text_file(folder / "missing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  const auto directory = read_text_file(folder.path());
  ASSERT_FALSE(directory.ok());
  EXPECT_EQ(directory.error().code, ErrorCode::kInvalidArgument);

  write_file(folder / "large", "");
  std::filesystem::resize_file(folder / "large", (std::uintmax_t{2} << 30) + 1);  // sparse
  const auto large = read_text_file(folder / "large");
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.error().message.find("2147483648"), std::string::npos) << large.error().message;
  for (const auto* read : {&missing, &directory, &large}) expect_one_line(read->error().message);
}

}  // namespace
}  // namespace volvelle
