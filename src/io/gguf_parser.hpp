// The GGUF reader over bytes in memory; read_gguf() is this over a mapped file. Separate so that
// damaged inputs can be tried without a file system.
#pragma once

#include <cstddef>
#include <span>

#include "volvelle/io/gguf.hpp"

namespace volvelle::io {

/// `file` is the whole file; `path` goes into the result and into messages.
Result<GgufFile> parse_gguf(std::span<const std::byte> file, const std::filesystem::path& path);

}  // namespace volvelle::io
