// Read-only mappings: contents, lifetime, and what is refused.
#include "volvelle/io/mapped_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "unit/file_support.hpp"

namespace volvelle {
namespace {

using testing::read_file;
using testing::TempFolder;
using testing::write_file;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytes) {
  const TempFolder folder;
  write_file(folder / "a", std::string("one\0two", 7));
  const auto file = MappedFile::open(folder / "a");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(text_of(*file), std::string("one\0two", 7));
}

TEST(MappedFile, EmptyFileIsAnEmptySpan) {
  const TempFolder folder;
  write_file(folder / "empty", "");
  const auto file = MappedFile::open(folder / "empty");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, OwnerKeepsThePagesAfterTheFileIsGone) {
  const TempFolder folder;
  write_file(folder / "a", std::string(100000, 'x'));
  std::span<const std::byte> bytes;
  std::shared_ptr<void> owner;
  {
    const auto file = MappedFile::open(folder / "a");
    ASSERT_TRUE(file.ok());
    bytes = file->bytes();
    owner = file->owner();
  }
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(bytes[99999], std::byte{'x'});
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TempFolder folder;
  const auto missing = MappedFile::open(folder / "missing\nname");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  testing::expect_one_line(missing.error().message);

  const auto directory = MappedFile::open(folder.path());
  ASSERT_FALSE(directory.ok());
  EXPECT_EQ(directory.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(directory.error().message.find("folder"), std::string::npos);

  // A pipe nobody writes to: opening it must fail at once and not wait.
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto pipe = MappedFile::open(folder / "pipe");
  ASSERT_FALSE(pipe.ok());
  EXPECT_NE(pipe.error().message.find("pipe"), std::string::npos);
}

}  // namespace
}  // namespace volvelle
