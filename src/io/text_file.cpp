// Whole text files: documents and prompts. Pipes work too (a shell's process substitution), so the
// size is learned by reading. An empty file is an empty text; whether that makes sense is the
// caller's question. Bytes are returned as they are. Cost: one read of the file, amortised growth
// for pipes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "io/file_descriptor.hpp"
#include "io/message.hpp"
#include "volvelle/io/atomic_file.hpp"

namespace volvelle {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{2} << 30;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

Error too_large(const std::string& operation) {
  return {ErrorCode::kInvalidArgument, operation + "expected at most " +
                                           std::to_string(kMaxTextBytes) +
                                           " bytes of text, found more; split the file"};
}

Error failure(const std::string& operation, int error) {
  if (error == EINTR) return {ErrorCode::kCancelled, operation + "interrupted"};
  return {ErrorCode::kIo, operation + io::system_message(error)};
}

}  // namespace

Result<std::string> read_text_file(const std::filesystem::path& path) {
  const std::string operation = "reading " + io::quoted_path(path) + ": ";
  const io::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    const int error = errno;
    if (error == EINTR) return failure(operation, error);  // while waiting for a pipe's writer
    const bool missing = error == ENOENT || error == ENOTDIR;
    return Error{missing ? ErrorCode::kNotFound : ErrorCode::kIo,
                 operation + io::system_message(error) + "; check the path and its permissions"};
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failure(operation, errno);
  if (S_ISDIR(info.st_mode)) {
    return Error{ErrorCode::kInvalidArgument, operation + "expected a text file, found a folder"};
  }
  const auto announced = static_cast<std::size_t>(std::max<off_t>(info.st_size, 0));
  if (announced > kMaxTextBytes) return too_large(operation);

  std::string text(announced, '\0');
  std::size_t used = 0;
  for (;;) {
    if (used == text.size())
      text.resize(used + kReadBytes);  // also past the announced end: the file may have grown
    const ssize_t n = ::read(fd.get(), text.data() + used, text.size() - used);
    if (n < 0) return failure(operation, errno);
    if (n == 0) break;
    used += static_cast<std::size_t>(n);
    if (used > kMaxTextBytes) return too_large(operation);
  }
  text.resize(used);
  return text;
}

}  // namespace volvelle
