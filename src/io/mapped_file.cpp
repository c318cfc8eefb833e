// Read-only mappings. Only regular files are mapped: a pipe or device has no size, a folder no
// bytes. Invariant: bytes() lies inside the mapping that owner() keeps alive. A file that someone
// else shortens while it is mapped faults on access (the system's rule for mappings), which is why
// our own writers replace files and never shorten them. Cost: O(1); pages are read when touched.
#include "volvelle/io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "io/file_descriptor.hpp"
#include "io/mapping.hpp"
#include "io/message.hpp"

namespace volvelle {

std::shared_ptr<void> io::map_file(int fd, std::size_t size, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const start = ::mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (start == MAP_FAILED) return nullptr;
  return {start, [size](void* p) { ::munmap(p, size); }};
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const std::string operation = "opening " + io::quoted_path(path) + ": ";
  // O_NONBLOCK: opening a pipe must be refused below, not wait for its writer.
  const io::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const int error = errno;
    const bool missing = error == ENOENT || error == ENOTDIR;
    return Error{missing ? ErrorCode::kNotFound : ErrorCode::kIo,
                 operation + io::system_message(error) + "; check the path and its permissions"};
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0)
    return Error{ErrorCode::kIo, operation + io::system_message(errno)};
  if (S_ISDIR(info.st_mode)) {
    return Error{ErrorCode::kInvalidArgument,
                 operation + "expected a file, found a folder; name a file inside it"};
  }
  if (!S_ISREG(info.st_mode)) {
    return Error{
        ErrorCode::kInvalidArgument,
        operation +
            "expected a regular file, found a pipe, socket or device; save it to a file first"};
  }
  MappedFile file;
  if (info.st_size == 0) return file;
  const auto size = static_cast<std::size_t>(info.st_size);
  file.owner_ = io::map_file(fd.get(), size, false);
  if (!file.owner_) {
    const int error = errno;
    return Error{error == ENOMEM ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
                 operation + "mapping " + std::to_string(size) +
                     " bytes failed: " + io::system_message(error)};
  }
  file.bytes_ = {static_cast<const std::byte*>(file.owner_.get()), size};
  return file;
}

}  // namespace volvelle
