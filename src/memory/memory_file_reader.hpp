// The checks of MemoryFile::open() over bytes in memory. Separate so that damaged inputs can be
// tried without a file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/memory_file_checks.hpp"
#include "memory/memory_file_format.hpp"

namespace volvelle {

struct OpenedMemory {
  SafetensorsHeader header;
  MemoryRecord record;
  memory_format::Shape shape;
  RowPositions row_positions;
  CheckedFile checked;               // views of the bytes given to read_memory()
  std::uint64_t n_small_blocks = 0;  // blocks of checks that open() has looked at
};

/// Whether checks are compared. Only tests of the parser switch that off: what damage to the sizes
/// does shows behind the checks.
enum class Integrity { kVerify, kIgnore };

/// `file` is the whole file and must outlive the result. Errors do not name the file.
Result<OpenedMemory> read_memory(std::span<const std::byte> file,
                                 Integrity integrity = Integrity::kVerify);

}  // namespace volvelle
