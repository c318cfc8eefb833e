// The engine's tokenizer plus byte ranges, which it does not give.
//
// Ranges are found by walking the text along the tokens' pieces. A tokenizer may add a space in
// front, drop repeated white space, or replace unknown characters; those cases are followed. A
// token that can not be placed has the range {-1, -1}: unknown, never wrong.
#include "volvelle/runtime/tokenizer.hpp"

#include <exception>
#include <limits>
#include <utility>

#include "base/result_macros.hpp"
#include "runtime/tokenizer_impl.hpp"

namespace volvelle {
namespace {

bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Aligner {
 public:
  explicit Aligner(std::string_view text) : text_(text) {}

  ByteRange place(std::string_view piece) {
    if (piece.empty()) return {};
    if (const ByteRange range = place_here(piece); range.begin >= 0) return range;
    std::size_t skip = at_;  // the tokenizer may have dropped white space
    while (skip < text_.size() && is_space(text_[skip])) ++skip;
    const std::size_t before = std::exchange(at_, skip);
    if (const ByteRange range = place_here(piece); range.begin >= 0) return range;
    at_ = before;
    return resynchronize(piece);
  }

 private:
  ByteRange place_here(std::string_view piece) {
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with(piece)) return take(piece.size());
    if (piece.size() > 1 && piece[0] == ' ' && rest.starts_with(piece.substr(1)))
      return take(piece.size() - 1);
    return {};
  }

  /// After an unknown character the next piece stands a little further on.
  ByteRange resynchronize(std::string_view piece) {
    constexpr std::size_t kReach = 64;  // bytes; more would risk a wrong match
    const std::string_view core = piece.size() > 1 && piece[0] == ' ' ? piece.substr(1) : piece;
    const std::size_t found = text_.substr(at_, kReach).find(core);
    if (found == std::string_view::npos) return {};
    at_ += found;
    return take(core.size());
  }

  ByteRange take(std::size_t n) {
    const ByteRange range{static_cast<std::int64_t>(at_), static_cast<std::int64_t>(at_ + n)};
    at_ += n;
    return range;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// The engine looks bytes and characters up in the vocabulary and throws where one is missing.
Result<std::vector<TokenId>> engine_tokens(const llama_vocab* vocab, std::string_view text,
                                           bool parse_special) {
  const Error missing{ErrorCode::kCorrupt,
                      "tokenize: the model's vocabulary has no token for a part of the text; the "
                      "file is damaged"};
  std::vector<TokenId> tokens(text.size() / 3 + 16);
  try {
    for (int attempt = 0; attempt < 2; ++attempt) {
      // A buffer that is too small is answered with minus the number of tokens.
      const std::int32_t n =
          llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                         static_cast<std::int32_t>(tokens.size()), false, parse_special);
      if (n == std::numeric_limits<std::int32_t>::min()) {
        return Error{ErrorCode::kInvalidArgument,
                     "tokenize: the text has too many tokens; split it"};
      }
      tokens.resize(static_cast<std::size_t>(n >= 0 ? n : -n));
      if (n >= 0) break;
    }
  } catch (const std::exception&) {
    return missing;
  }
  const std::int32_t n_vocab = llama_vocab_n_tokens(vocab);
  for (const TokenId token : tokens) {
    if (token < 0 || token >= n_vocab) return missing;
  }
  return tokens;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<TokenizedText> Tokenizer::tokenize(std::string_view text, TokenizeOptions options) const {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) / 2) {
    return Error{ErrorCode::kInvalidArgument, "tokenize: a text of " + std::to_string(text.size()) +
                                                  " bytes is too long for one call; split it"};
  }
  TokenizedText result;
  VOLVELLE_ASSIGN_OR_RETURN(result.tokens,
                            engine_tokens(impl_->vocab, text, options.parse_special));
  Aligner aligner(text);
  result.ranges.reserve(result.tokens.size() + 1);
  for (const TokenId token : result.tokens)
    result.ranges.push_back(aligner.place(piece(token, options.parse_special)));
  // The engine's own "add special" would also close the text with an end token where a model asks
  // for one; a text that goes on must not be closed.
  if (options.add_special && llama_vocab_get_add_bos(impl_->vocab)) {
    if (llama_vocab_bos(impl_->vocab) < 0) {
      return Error{ErrorCode::kCorrupt,
                   "tokenize: the model wants a beginning token and has none; its vocabulary is "
                   "damaged"};
    }
    result.tokens.insert(result.tokens.begin(), llama_vocab_bos(impl_->vocab));
    result.ranges.insert(result.ranges.begin(), ByteRange{});
  }
  return result;
}

std::string Tokenizer::piece(TokenId token, bool special) const {
  std::string text(32, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int32_t n = llama_token_to_piece(impl_->vocab, token, text.data(),
                                                static_cast<std::int32_t>(text.size()), 0, special);
    text.resize(static_cast<std::size_t>(n >= 0 ? n : -n));
    if (n >= 0) break;
  }
  return text;
}

bool Tokenizer::is_end_of_generation(TokenId token) const noexcept {
  return llama_vocab_is_eog(impl_->vocab, token);
}

std::int64_t Tokenizer::n_vocab() const noexcept { return llama_vocab_n_tokens(impl_->vocab); }

}  // namespace volvelle
