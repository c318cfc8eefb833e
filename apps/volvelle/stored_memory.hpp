// Memory files that commands go on with: which model they belong to, whether it is the one that is
// loaded, and what of their tokens is still of use.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "console.hpp"
#include "volvelle/memory/memory_file.hpp"
#include "volvelle/runtime/chat_format.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle::cli {

/// The model of a memory: -m, else the recorded path, else any model of the cache folder with the
/// recorded fingerprint. `file` names the memory in errors.
Result<std::filesystem::path> find_model(const std::string& model_flag, const MemoryRecord& record,
                                         const std::string& file);

/// Refuses a file that holds no text.
Status require_text(const MemoryRecord& record, const std::string& name);

/// A memory is rows that one model computed; under any other model they are noise. Returns the chat
/// format that the memory was made with.
Result<ChatFormat> require_match(const MemoryFile& file, const Model& model,
                                 const std::string& name);

/// Lets an empty memory use the codes in a calibration file, which must be of this model; an empty
/// path does nothing.
Status apply_calibration(const std::string& path, const Model& model, ContextMemory& memory,
                         Console& console);
/// The spec of the file, if this version can serve it.
Result<MemorySpec> stored_spec(const MemoryRecord& record);

/// Checks every row, then hands out the memory.
Result<ContextMemory> restore_memory(MemoryFile& file, Console& console);

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b);

}  // namespace volvelle::cli
