// Documents and prompts from files and flags, checked before any work is done with them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "console.hpp"
#include "volvelle/runtime/chat_format.hpp"
#include "volvelle/runtime/session.hpp"
#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle::cli {

/// UTF-8 text without NUL bytes and with at least one character that is visible.
/// `what` names it in errors ("moby.txt", "the question").
Status check_text(std::string_view text, std::string_view what);

/// Removes a byte order mark at the start, with a note that names `what`.
void drop_byte_order_mark(std::string& text, std::string_view what, Console& console);

struct TextInput {
  std::filesystem::path path;
  std::string text;
};
/// `name`: a path, or the name of a file in the cache folder's texts/. A byte order mark at the
/// start is left out, with a note.
Result<TextInput> read_text(const std::string& name, Console& console);

/// Between texts that are put together, as between a document and a question.
inline constexpr std::string_view kTextSeparator = kQuestionSeparator;

/// Texts put together in their order, with kTextSeparator between them.
struct TextSet {
  std::vector<std::filesystem::path> paths;
  std::string text;
  std::vector<TextSource> sources;  // the files' names, and where in `text` they are
};
Result<TextSet> read_texts(std::span<const std::string> names, Console& console);
/// Puts `more` behind `text`, and its sources behind `sources`.
void append_text(std::string& text, std::vector<TextSource>& sources, const TextSet& more);

/// Cuts the tokens of the text in `path` to the first `n`; fewer are an error.
Status keep_first_tokens(std::vector<TokenId>& tokens, std::int64_t n,
                         const std::filesystem::path& path);

/// The first `n` tokens of a text as a raw document (BOS as the model wants it); fewer are an
/// error.
Result<std::vector<TokenId>> first_tokens(const Model& model, const std::string& name,
                                          std::int64_t n, Console& console);

/// Refuses `n_tokens` of `what` that do not fit into `limit`; both numbers are in the error.
Status require_room(std::int64_t n_tokens, std::int64_t limit, const Model& model,
                    std::string_view what);

/// Folds `tokens` into `memory` in chunks, with progress.
Status read_tokens(Session& session, ContextMemory& memory, std::span<const TokenId> tokens,
                   std::int64_t chunk, Console& console);

}  // namespace volvelle::cli
