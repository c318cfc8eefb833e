// Atomic writes: a target is the old file or the complete new one, never anything else, and nothing
// is left behind; and reading of text files.
#include "volvelle/io/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "io/temporary_file.hpp"
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

/// Whether the folder of temporary files takes files without names, asked of the system directly.
bool has_unnamed_files() {
  const int fd =
      ::open(std::filesystem::temp_directory_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

/// Both kinds of temporary file: true is without a name, where the file system has those.
class AtomicFileTest : public ::testing::TestWithParam<bool> {
 protected:
  AtomicFileTest() { io::set_unnamed_files_allowed(GetParam()); }
  void SetUp() override {
    if (GetParam() && !has_unnamed_files()) GTEST_SKIP() << "no O_TMPFILE on this file system";
  }
  ~AtomicFileTest() override { io::set_unnamed_files_allowed(true); }
  /// Names in the folder for each file that is being written.
  std::size_t names_while_writing() const { return GetParam() ? 0 : 1; }
};
INSTANTIATE_TEST_SUITE_P(Unnamed, AtomicFileTest, ::testing::Bool());

TEST_P(AtomicFileTest, CommitPutsTheFileInPlace) {
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

TEST_P(AtomicFileTest, OnlyTheOwnerMayRead) {
  const TempFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", as_bytes("text")).ok());
  struct stat info {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_P(AtomicFileTest, WithoutCommitNothingHappens) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  std::shared_ptr<void> owner;
  {
    auto file = AtomicFile::create(folder / "a", 5000);
    ASSERT_TRUE(file.ok());
    fill(*file, 'x');
    owner = file->owner();
    EXPECT_EQ(folder.n_entries(), 1 + names_while_writing());
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(folder.n_entries(), 1u);
  EXPECT_EQ(static_cast<const char*>(owner.get())[4999], 'x');  // the mapping outlives the file
}

TEST_P(AtomicFileTest, MovesKeepOneTemporaryFile) {
  const TempFolder folder;
  auto first = AtomicFile::create(folder / "a", 10);
  auto second = AtomicFile::create(folder / "b", 10);
  ASSERT_TRUE(first.ok() && second.ok());
  *first = std::move(*second);  // the first one's temporary file goes
  EXPECT_EQ(folder.n_entries(), names_while_writing());
  ASSERT_TRUE(first->commit().ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_TRUE(std::filesystem::exists(folder / "b"));
}

TEST_P(AtomicFileTest, EmptyFilesCanBeWritten) {
  const TempFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", {}).ok());
  EXPECT_EQ(read_file(folder / "a"), "");
}

TEST_P(AtomicFileTest, LongNamesFit) {
  const TempFolder folder;
  const std::string name(255, 'n');
  ASSERT_TRUE(write_file_atomically(folder / name, as_bytes("text")).ok());
  EXPECT_EQ(read_file(folder / name), "text");
}

TEST_P(AtomicFileTest, TooLongNamesAreRefusedBeforeTheWork) {
  const TempFolder folder;
  const auto limit = static_cast<std::size_t>(::pathconf(folder.path().c_str(), _PC_NAME_MAX));
  const auto file = AtomicFile::create(folder / std::string(limit + 1, 'n'), 10);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(file.error().message.find("at most " + std::to_string(limit) + " bytes, found " +
                                      std::to_string(limit + 1)),
            std::string::npos)
      << file.error().message;
  std::filesystem::path deep = folder.path();
  while (deep.native().size() < 5000) deep /= "folder";
  const auto path = AtomicFile::create(deep / "a", 10);
  ASSERT_FALSE(path.ok());
  EXPECT_NE(path.error().message.find("too long"), std::string::npos) << path.error().message;
  EXPECT_EQ(folder.n_entries(), 0u);
}

TEST_P(AtomicFileTest, AFailedCommitLeavesNoName) {
  const TempFolder folder;
  auto file = AtomicFile::create(folder / "a", 10);
  ASSERT_TRUE(file.ok());
  std::filesystem::create_directory(folder / "a");  // a file can not be renamed over a folder
  const Status status = file->commit();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  expect_one_line(status.error().message);
  EXPECT_EQ(folder.n_entries(), 1u);
  EXPECT_THROW((void)file->commit(), std::logic_error);
}

TEST_P(AtomicFileTest, AKilledProcessLeavesTheOldFile) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto file = AtomicFile::create(folder / "a", 100000);
    if (file.ok()) fill(*file, 'x');
    (void)!::write(ready[1], file.ok() ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char created = 0;
  ASSERT_EQ(::read(ready[0], &created, 1), 1);
  EXPECT_EQ(created, 'y');
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(folder.n_entries(), 1 + names_while_writing());  // a file with a name can but stay
}

TEST_P(AtomicFileTest, TwoWritersLeaveOneWholeFile) {
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

TEST_P(AtomicFileTest, RefusesTargetsThatAreNoFiles) {
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

TEST_P(AtomicFileTest, RefusesFoldersThatCanNotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "the superuser may write everywhere";
  const TempFolder folder;
  std::filesystem::create_directory(folder / "sub");
  std::filesystem::permissions(folder / "sub", std::filesystem::perms::owner_read);
  const auto file = AtomicFile::create(folder / "sub/a", 10);
  std::filesystem::permissions(folder / "sub", std::filesystem::perms::owner_all);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("not writable"), std::string::npos) << file.error().message;
}

TEST_P(AtomicFileTest, TooLittleSpaceNamesBothNumbersAndLeavesNothing) {
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

/// Reads `pipe` in a thread and sends that thread signals until it returns.
Result<std::string> read_interrupted(const std::filesystem::path& pipe) {
  struct sigaction quiet {
  }, before{};
  quiet.sa_handler = [](int) {};  // sa_flags without SA_RESTART
  ::sigaction(SIGUSR1, &quiet, &before);
  std::atomic<bool> finished{false};
  Result<std::string> result = std::string();
  std::thread reader([&] {
    result = read_text_file(pipe);
    finished = true;
  });
  // A signal that comes before the system call is lost, hence more than one.
  while (!finished) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!finished) ::pthread_kill(reader.native_handle(), SIGUSR1);
  }
  reader.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  return result;
}

TEST(ReadTextFile, ASignalEndsTheWaitForAPipe) {
  const TempFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto expect_cancelled = [&](const Result<std::string>& read) {
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(read.error().message, "reading '" + pipe.string() + "': interrupted");
  };
  expect_cancelled(read_interrupted(pipe));  // in open(): nobody writes
  const int writer = ::open(pipe.c_str(), O_RDWR);
  ASSERT_GE(writer, 0);
  ASSERT_EQ(::write(writer, "text", 4), 4);
  expect_cancelled(read_interrupted(pipe));  // in read(): the writer sends no more
  ::close(writer);
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
