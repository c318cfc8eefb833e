// One mmap of a whole open file, shared: the pages stay mapped while any copy of the pointer lives,
// also after the file was closed, renamed or unlinked.
#pragma once

#include <cstddef>
#include <memory>

namespace volvelle::io {

/// Maps `size` > 0 bytes of `fd`; empty pointer (errno set) if the system refuses. Writable
/// mappings write to the file.
std::shared_ptr<void> map_file(int fd, std::size_t size, bool writable);

}  // namespace volvelle::io
