// Saved memories (.vmem): valid safetensors files, described byte by byte in docs/memory_file.md.
//
// Written as a temporary file in the target's folder whose size is reserved first (so a full disk
// is an error before the work), folded rows go straight into its mapping, then checks, fsync,
// rename. Mode 0600: it contains the text. A loaded memory is a read-only mapping: header and small
// tensors are checked by open(), K and V rows by verify_rows(), which must succeed before the rows
// are used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/memory/context_memory.hpp"

namespace volvelle {

/// The newest format that is read; files without an index are written as version 2.
inline constexpr int kMemoryFormatVersion = 3;

/// Where in the text a token came from; {-1, -1} for tokens of the chat template.
struct ByteRange {
  std::int64_t begin = -1;
  std::int64_t end = -1;
  bool operator==(const ByteRange&) const = default;
};

/// One of the pieces that the text was put together from: a file, or a turn of a conversation.
struct TextSource {
  std::string name;  // "emma.txt", "user"; one line
  ByteRange range;   // of the text
  bool operator==(const TextSource&) const = default;
};

inline constexpr const char* kDocumentMemory = "document";
inline constexpr const char* kConversationMemory = "conversation";
/// One token, and the codes of an index for other memories; see ContextMemory::adopt_codes().
inline constexpr const char* kCalibrationMemory = "calibration";

/// Everything about a memory but its rows.
struct MemoryRecord {
  std::string kind = kDocumentMemory;  // or kConversationMemory, kCalibrationMemory
  std::string spec;                    // canonical
  std::string engine;                  // "llama.cpp 0.5.0 ..."
  std::string model_path;
  std::string model_name;
  std::string model_fingerprint;
  std::string tokenizer_hash;
  std::string rope;           // RopeConfig::describe()
  std::string chat_format;    // template name, or "raw"
  std::string template_hash;  // of the chat template's text; empty for raw
  std::int64_t chunk = 0;
  std::vector<TokenId> tokens;    // [n_tokens]
  std::vector<ByteRange> ranges;  // [n_tokens]
  std::string text;
  std::int64_t text_begin_token = 0;  // first token of the text (the template's tokens come before)
  std::vector<TextSource> sources;    // in the order of the text; may be empty
};

class MemoryFileWriter {
 public:
  /// Reserves the file for the rows at these positions and writes header and record.
  static Result<MemoryFileWriter> create(const std::filesystem::path& path,
                                         const MemoryRecord& record, const StoreLayout& layout,
                                         const RowPositions& row_positions);
  /// The same for a finished memory, whose index is written at once.
  static Result<MemoryFileWriter> create(const std::filesystem::path& path,
                                         const MemoryRecord& record, const ContextMemory& memory);
  MemoryFileWriter(MemoryFileWriter&&) noexcept;
  MemoryFileWriter& operator=(MemoryFileWriter&&) noexcept;
  ~MemoryFileWriter();  // without finish(): nothing is left behind

  /// The rows of one group inside the file, to be filled before finish().
  std::shared_ptr<RowBlock> rows(int group = 0);
  /// Fills a group with the rows of a memory that are worth keeping; their positions must be those
  /// given to create().
  Status copy_rows(const ContextMemory& memory, int group);
  /// Bytes of K and V rows.
  std::uint64_t row_bytes() const noexcept;
  /// Checks, fsync, rename. Returns the size of the file in bytes. The old file at `path`, if any,
  /// is replaced only here.
  Result<std::uint64_t> finish(const ProgressSink& progress = {});

 private:
  struct Impl;
  explicit MemoryFileWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Saves a memory that lives in RAM (or in another file).
Result<std::uint64_t> save_memory(const std::filesystem::path& path, const MemoryRecord& record,
                                  const ContextMemory& memory);

class MemoryFile {
 public:
  static Result<MemoryFile> open(const std::filesystem::path& path);
  MemoryFile(MemoryFile&&) noexcept;
  MemoryFile& operator=(MemoryFile&&) noexcept;
  ~MemoryFile();

  const MemoryRecord& record() const noexcept;
  const StoreLayout& layout() const noexcept;
  /// [n_groups]
  const RowPositions& row_positions() const noexcept;
  std::uint64_t file_bytes() const noexcept;
  std::uint64_t row_bytes() const noexcept;
  /// Checks every block of K and V rows; cheap when repeated.
  Status verify_rows(const ProgressSink& progress = {});
  /// The memory, reading from the mapping. Needs verify_rows() first.
  Result<ContextMemory> restore() const;

 private:
  struct Impl;
  explicit MemoryFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace volvelle
