// Documents and prompts from files and flags, checked before any work is done with them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "console.hpp"
#include "volvelle/runtime/session.hpp"
#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle::cli {

/// UTF-8 text without NUL bytes and with at least one character that is not white space.
/// `what` names it in errors ("moby.txt", "the question").
Status check_text(std::string_view text, std::string_view what);

struct TextInput {
  std::filesystem::path path;
  std::string text;
};
/// `name`: a path, or the name of a file in the cache folder's texts/.
Result<TextInput> read_text(const std::string& name);

/// The first `n` tokens of a text as a raw document (BOS as the model wants it); fewer are an
/// error.
Result<std::vector<TokenId>> first_tokens(const Model& model, const std::string& name,
                                          std::int64_t n);

/// Refuses `n_tokens` of `what` that do not fit into `limit`; both numbers are in the error.
Status require_room(std::int64_t n_tokens, std::int64_t limit, const Model& model,
                    std::string_view what);

/// Folds `tokens` into `memory` in chunks, with progress.
Status read_tokens(Session& session, ContextMemory& memory, std::span<const TokenId> tokens,
                   std::int64_t chunk, Console& console);

}  // namespace volvelle::cli
