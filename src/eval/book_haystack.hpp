// Haystacks for trained models: a stretch of a real book with planted facts.
//
//   [template's opening] ... book ... The magic number for zephyr is 48213. ... book ...   T tokens
//   [separator] What is the magic number for zephyr? ... [template's closing]     begins at token T
//
// A fact stands wholly inside its chunk and, where the chunk has one, behind the end of a sentence.
// Its key is a rare word that the book does not have, its value a number of five digits that no
// other fact has. Phrasings take turns. (KV-Fold, arXiv 2605.12471, needle protocol.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/seeded_choices.hpp"
#include "volvelle/eval/natural_needle.hpp"
#include "volvelle/runtime/chat_format.hpp"

namespace volvelle {

struct NaturalFact {
  std::string sentence;  // "The magic number for zephyr is 48213."
  std::string question;  // for the chat, or the sentence's beginning for a model without one
  std::string value;     // "48213"
};

struct BookHaystack {
  std::vector<TokenId> tokens;  // [T]
  struct Needle {
    NaturalFact fact;
    std::int64_t distance = 0;
    std::vector<TokenId> question;
  };
  std::vector<Needle> needles;
};

/// What does not change from one haystack to the next.
class BookLibrary {
 public:
  static Result<BookLibrary> create(const Model& model, std::string_view book, bool chat);

  /// The haystack number `trial` for needles in the chunks before the question's by `distances`.
  Result<BookHaystack> make(const NaturalNeedleOptions& options, std::int64_t trial,
                            const std::vector<std::int64_t>& distances) const;
  /// The template's opening: what stands before a text.
  const std::vector<TokenId>& opening() const noexcept { return opening_; }

 private:
  explicit BookLibrary(const Model& model) : tokenizer_(&model.tokenizer()) {}
  bool is_chat() const noexcept { return !format_.after_question.empty(); }
  std::vector<NaturalFact> invent(std::int64_t trial, std::size_t n, SeededChoices& choices) const;
  Result<std::vector<TokenId>> question_tokens(const NaturalFact& fact) const;

  const Tokenizer* tokenizer_;
  ChatFormat format_;
  std::vector<TokenId> opening_;
  std::vector<TokenId> book_;
  std::vector<bool> ends_sentence_;  // [book_]
  std::vector<std::string> words_;   // rare ones that the book does not have
};

/// The first run of exactly five digits.
std::optional<std::string> first_five_digits(std::string_view text);

}  // namespace volvelle
