// `volvelle fold --append`: more text behind a stored one, reading only what is new.
//
//   text' = text + blank line + more;  tokens' = tokenize(text');  p = common prefix with tokens
//   memory' = step(memory cut to p tokens, tokens'[p:])
//
// So the result is that of folding both texts at once. FILE is locked against other appends and
// replaced at the end, if it is still the file that was read; until then, and after any failure, it
// is what it was. Cost: one pass of the model over the new text, and one copy of the file.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/result_macros.hpp"
#include "fold.hpp"
#include "output_path.hpp"
#include "stored_memory.hpp"
#include "text_input.hpp"

namespace volvelle::cli {

namespace {

namespace fs = std::filesystem;

// The right to replace a file: two appends at once would lose the text of one.
class FileLock {
 public:
  static Result<FileLock> take(const fs::path& path) {
    FileLock lock(path, open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (lock.file_ < 0) {
      return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                   fmt::format("opening {}: {}: --append needs a memory that exists", path.string(),
                               std::generic_category().message(errno))};
    }
    const bool locked = flock(lock.file_, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK) {
      return Error{ErrorCode::kIo, fmt::format("opening {}: another process is appending to it: "
                                               "wait until it is done",
                                               path.string())};
    }
    // A file system without locks still has the check for a changed file.
    return lock;
  }
  FileLock(FileLock&& other) noexcept
      : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock() {
    if (file_ >= 0) close(file_);
  }

  // The name may have come to mean another file since it was opened.
  Status require_same() const {
    struct stat opened = {};
    struct stat named = {};
    const bool same = fstat(file_, &opened) == 0 && stat(path_.c_str(), &named) == 0 &&
                      opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
    if (same) return {};
    return Error{ErrorCode::kIo, fmt::format("appending to {}: another process replaced it "
                                             "meanwhile: nothing was written, try again",
                                             path_.string())};
  }

 private:
  FileLock(fs::path path, int file) : path_(std::move(path)), file_(file) {}
  fs::path path_;
  int file_;
};

// Flags may repeat what the file says, not change it.
Status require_no_contradiction(const FoldFlags& flags, const MemoryRecord& record) {
  const auto refuse = [&](const std::string& given, const std::string& stored) {
    return usage_error(fmt::format(
        "{} contradicts {}, which was folded with {}: leave it out, or make a new memory with "
        "fold --from {} -o NEW",
        given, flags.output, stored, flags.output));
  };
  if (record.kind == kConversationMemory) {
    return usage_error(fmt::format("{} is a conversation: continue it with chat --load {}",
                                   flags.output, flags.output));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory, record.spec));
  if (to_string(spec) != record.spec)
    return refuse(fmt::format("the memory '{}'", to_string(spec)),
                  fmt::format("'{}'", record.spec));
  if (flags.chunk && *flags.chunk != record.chunk)
    return refuse(fmt::format("--chunk {}", *flags.chunk), fmt::format("{}", record.chunk));
  if (!flags.format_name().empty() && flags.format_name() != record.chat_format)
    return refuse(fmt::format("the format {}", flags.format_name()), record.chat_format);
  return {};
}

// The old record with the new text; its spec, chunk and format stay.
Result<MemoryRecord> extended_record(const MemoryRecord& old, const TextSet& more,
                                     const Model& model, const ChatFormat& format) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, stored_spec(old));
  MemoryRecord record = make_record(model, format, spec, old.chunk);
  record.text = old.text;
  record.sources = old.sources;
  append_text(record.text, record.sources, more);
  return record;
}

// Reads tokens[n_cached:] into the memory and writes the whole. The space is reserved first, so a
// full disk is found before the work.
Result<Folded> extend_file(Session& session, ContextMemory& memory, const MemoryRecord& record,
                           const FileLock& lock, const fs::path& path, Console& console) {
  Folded folded{.n_cached = memory.length()};
  const RowPositions expected = positions_after(memory.grouping(), std::ssize(record.tokens));
  std::optional<MemoryFileWriter> writer;
  VOLVELLE_ASSIGN_OR_RETURN(writer,
                            MemoryFileWriter::create(path, record, session.layout(), expected));
  const auto start = std::chrono::steady_clock::now();
  const auto rest = std::span(record.tokens).subspan(static_cast<std::size_t>(folded.n_cached));
  VOLVELLE_RETURN_IF_ERROR(read_tokens(session, memory, rest, record.chunk, console));
  VOLVELLE_RETURN_IF_ERROR(session.prepare_index(memory));
  folded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  folded.kv_bytes = memory.row_bytes_used();
  // A window that was cut back may lack rows that a fold from the start would still have to spare.
  // An index is part of the file, and its size is known only now.
  const bool as_expected = memory.positions_to_keep() == expected && memory.index() == nullptr;
  for (int group = 0; as_expected && group < std::ssize(expected); ++group) {
    VOLVELLE_RETURN_IF_ERROR(writer->copy_rows(memory, group));
  }
  VOLVELLE_RETURN_IF_ERROR(lock.require_same());
  if (as_expected) {
    VOLVELLE_ASSIGN_OR_RETURN(folded.file_bytes, writer->finish(console.progress_sink()));
    return folded;
  }
  writer.reset();  // the space is needed for the file itself now
  VOLVELLE_ASSIGN_OR_RETURN(folded.file_bytes, save_memory(path, record, memory));
  return folded;
}

}  // namespace

Result<Report> append_to_memory(const FoldFlags& flags, Console& console) {
  const fs::path path = flags.output;
  VOLVELLE_ASSIGN_OR_RETURN(const FileLock lock, FileLock::take(path));
  VOLVELLE_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::open(path));
  VOLVELLE_RETURN_IF_ERROR(lock.require_same());
  const MemoryRecord& old = file.record();
  VOLVELLE_RETURN_IF_ERROR(require_no_contradiction(flags, old));
  VOLVELLE_ASSIGN_OR_RETURN(const TextSet more, read_texts(flags.files, console));
  VOLVELLE_ASSIGN_OR_RETURN(const fs::path model_path,
                            find_model(flags.model.model, old, flags.output));
  std::vector<fs::path> inputs = more.paths;
  inputs.push_back(model_path);
  VOLVELLE_RETURN_IF_ERROR(check_output(path, inputs));

  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(model_path, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t limit, context_limit(flags.model, model));
  VOLVELLE_ASSIGN_OR_RETURN(const ChatFormat format, require_match(file, model, flags.output));
  VOLVELLE_ASSIGN_OR_RETURN(MemoryRecord record, extended_record(old, more, model, format));
  VOLVELLE_RETURN_IF_ERROR(tokenize_text(record, model, format, limit, console));

  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, stored_spec(record));
  VOLVELLE_ASSIGN_OR_RETURN(const auto options, session_options(flags.model, spec, console));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, restore_memory(file, console));
  VOLVELLE_RETURN_IF_ERROR(memory.truncate(common_prefix(old.tokens, record.tokens)));
  VOLVELLE_ASSIGN_OR_RETURN(const Folded folded,
                            extend_file(session, memory, record, lock, path, console));
  return report_fold(record, folded, flags.output);
}

}  // namespace volvelle::cli
