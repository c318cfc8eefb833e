// What the three ways of folding share: a new memory from texts, one from the text of an old
// memory (--from), and more text behind a stored one (--append, in fold_append.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "volvelle/memory/memory_file.hpp"
#include "volvelle/runtime/chat_format.hpp"

namespace volvelle::cli {

struct FoldFlags {
  ModelFlags model;
  MemoryFlags memory;
  std::vector<std::string> files;
  std::string output;
  std::optional<std::int64_t> chunk;
  std::string format;
  std::string chat_template;
  bool append = false;
  std::string from;

  /// The chat format that the flags name; empty if they name none.
  const std::string& format_name() const { return chat_template.empty() ? format : chat_template; }
};

/// Everything about a memory of this model but its text.
MemoryRecord make_record(const Model& model, const ChatFormat& format, const MemorySpec& spec,
                         std::int64_t chunk);

/// Tokens of `record.text` and their places, into the record. Refuses more than `limit`, and warns
/// if there is hardly room for a question.
Status tokenize_text(MemoryRecord& record, const Model& model, const ChatFormat& format,
                     std::int64_t limit, Console& console);

/// What a fold did.
struct Folded {
  std::int64_t n_cached = 0;  // tokens that were there already
  std::uint64_t kv_bytes = 0;
  std::uint64_t file_bytes = 0;
  double seconds = 0;  // of the fold itself
};
Report report_fold(const MemoryRecord& record, const Folded& folded, const std::string& output);

/// `fold -f MORE -o FILE --append`
Result<Report> append_to_memory(const FoldFlags& flags, Console& console);

}  // namespace volvelle::cli
