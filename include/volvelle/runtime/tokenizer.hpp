// Text to tokens with byte ranges, and tokens to text that is always valid UTF-8. The engine gives
// no ranges; they are found by walking the text along the tokens' pieces, and a token that can not
// be placed has no range rather than a guessed one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "volvelle/base/ids.hpp"
#include "volvelle/base/result.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle {

struct TokenizeOptions {
  bool add_special = false;    // BOS if the model wants one; never an end token
  bool parse_special = false;  // "<|im_end|>" in the text is the control token (templates), not
                               // plain text (documents)
};

struct TokenizedText {
  std::vector<TokenId> tokens;
  std::vector<ByteRange> ranges;  // of the text; {-1,-1} for added specials. Consecutive ranges
                                  // cover the text but for dropped spaces
};

/// Immutable, thread-safe. Lives inside its Model and must not outlive it.
class Tokenizer {
 public:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  Result<TokenizedText> tokenize(std::string_view text, TokenizeOptions options) const;
  /// Raw bytes of one token (not always whole characters). Control tokens are empty unless
  /// `special`.
  std::string piece(TokenId token, bool special = false) const;
  bool is_end_of_generation(TokenId token) const noexcept;
  std::int64_t n_vocab() const noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Holds back the bytes of a character that is not complete yet; bytes that can never become one
/// come out as U+FFFD.
class Utf8Assembler {
 public:
  std::string push(std::string_view bytes);
  std::string finish();

 private:
  std::string pending_;
};

/// Byte offset of the first byte that is not valid UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text) noexcept;

}  // namespace volvelle
