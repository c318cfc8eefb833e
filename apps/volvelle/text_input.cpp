// Reading and checking text; the fold that reads it into a memory.
#include "text_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/result_macros.hpp"
#include "output.hpp"
#include "volvelle/attention/fold.hpp"
#include "volvelle/io/atomic_file.hpp"

namespace volvelle::cli {

namespace {

constexpr std::string_view kByteOrderMark = "\uFEFF";

// White space and characters that show nothing.
constexpr std::array<std::string_view, 32> kBlanks{
    " ",      "\t",     "\r",     "\n",     "\v",     "\f",     "\xC2\x85", "\u00A0",
    "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005",   "\u2006",
    "\u2007", "\u2008", "\u2009", "\u200A", "\u200B", "\u200C", "\u200D",   "\u2028",
    "\u2029", "\u202F", "\u205F", "\u2060", "\u3000", "\uFEFF", "\u180E",   "\u00AD"};

bool is_blank(std::string_view text) {
  while (!text.empty()) {
    const auto found = std::find_if(kBlanks.begin(), kBlanks.end(), [&](std::string_view blank) {
      return text.substr(0, blank.size()) == blank;
    });
    if (found == kBlanks.end()) return false;
    text.remove_prefix(found->size());
  }
  return true;
}

}  // namespace

Status check_text(std::string_view text, std::string_view what) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kCorrupt, fmt::format("reading {}: {}", what, why)};
  };
  // NUL first: binary files usually have both faults, and this one says what they are.
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    return refuse(fmt::format("a NUL byte at byte {}: this is a binary file, not text", nul));
  }
  const std::size_t bad = find_invalid_utf8(text);
  if (bad != std::string_view::npos) {
    return refuse(fmt::format("byte {} is not valid UTF-8: convert the text to UTF-8", bad));
  }
  if (is_blank(text)) return refuse("the text is empty");
  return {};
}

void drop_byte_order_mark(std::string& text, std::string_view what, Console& console) {
  if (text.compare(0, kByteOrderMark.size(), kByteOrderMark) != 0) return;
  text.erase(0, kByteOrderMark.size());
  console.note(fmt::format("note: the byte order mark at the start of {} is left out", what));
}

Result<TextInput> read_text(const std::string& name, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(auto path, find_input(name, "texts"));
  // Before a read that may wait for a pipe: a signal that came already will not interrupt it.
  if (console.cancel().cancelled()) {
    return Error{ErrorCode::kCancelled, fmt::format("reading {}: interrupted", path.string())};
  }
  VOLVELLE_ASSIGN_OR_RETURN(auto text, read_text_file(path));
  VOLVELLE_RETURN_IF_ERROR(check_text(text, path.string()));
  drop_byte_order_mark(text, path.string(), console);
  return TextInput{std::move(path), std::move(text)};
}

namespace {

// The name of a file as one line of UTF-8, whatever the file is called.
std::string name_of(const std::filesystem::path& path) {
  Utf8Assembler assembler;
  std::string name = assembler.push(path.filename().string());
  return escape_controls(name + assembler.finish());
}

}  // namespace

Result<TextSet> read_texts(std::span<const std::string> names, Console& console) {
  TextSet all;
  for (const std::string& name : names) {
    VOLVELLE_ASSIGN_OR_RETURN(TextInput input, read_text(name, console));
    const auto n_bytes = static_cast<std::int64_t>(input.text.size());
    const std::string source = name_of(input.path);
    all.paths.push_back(std::move(input.path));
    append_text(all.text, all.sources, {{}, std::move(input.text), {{source, {0, n_bytes}}}});
  }
  return all;
}

void append_text(std::string& text, std::vector<TextSource>& sources, const TextSet& more) {
  if (!text.empty()) text += kTextSeparator;
  const auto offset = static_cast<std::int64_t>(text.size());
  text += more.text;
  for (TextSource source : more.sources) {
    source.range.begin += offset;
    source.range.end += offset;
    sources.push_back(std::move(source));
  }
}

Status keep_first_tokens(std::vector<TokenId>& tokens, std::int64_t n,
                         const std::filesystem::path& path) {
  const auto available = static_cast<std::int64_t>(tokens.size());
  if (available < n) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("reading {}: it has {} tokens, {} are needed: use a longer text or fewer "
                    "tokens",
                    path.string(), available, n)};
  }
  tokens.resize(static_cast<std::size_t>(n));
  return {};
}

Result<std::vector<TokenId>> first_tokens(const Model& model, const std::string& name,
                                          std::int64_t n, Console& console) {
  VOLVELLE_RETURN_IF_ERROR(require_room(n, model.info().context_length, model, "--tokens"));
  VOLVELLE_ASSIGN_OR_RETURN(const auto input, read_text(name, console));
  VOLVELLE_ASSIGN_OR_RETURN(auto text,
                            model.tokenizer().tokenize(input.text, {.add_special = true}));
  VOLVELLE_RETURN_IF_ERROR(keep_first_tokens(text.tokens, n, input.path));
  return std::move(text.tokens);
}

Status require_room(std::int64_t n_tokens, std::int64_t limit, const Model& model,
                    std::string_view what) {
  if (n_tokens <= limit) return {};
  const std::int64_t trained = model.info().context_length;
  const std::string limit_name =
      limit < trained ? fmt::format("the limit -c {} (the model can hold {})", limit, trained)
                      : fmt::format("the model's context of {} tokens", limit);
  return Error{
      ErrorCode::kContextExceeded,
      fmt::format("{} has {} tokens, more than {}: shorten it, or use a model with a longer "
                  "context; a windowed memory does not extend positions",
                  what, n_tokens, limit_name)};
}

Status read_tokens(Session& session, ContextMemory& memory, std::span<const TokenId> tokens,
                   std::int64_t chunk, Console& console) {
  const ProgressSink progress = console.progress_sink();
  const auto total = static_cast<std::int64_t>(tokens.size());
  std::int64_t done = 0;
  progress({.phase = "reading", .done = done, .total = total, .unit = "tokens"});
  return fold_run(memory, tokens, chunk,
                  [&](ContextMemory& state, std::span<const TokenId> piece, bool) -> Status {
                    VOLVELLE_RETURN_IF_ERROR(session.step(state, piece, Logits::kNone));
                    done += static_cast<std::int64_t>(piece.size());
                    progress({"reading", done, total, "tokens"});
                    return {};
                  });
}

}  // namespace volvelle::cli
