// See book_haystack.hpp. Everything is put together as tokens, so that chunk borders are where the
// protocol wants them. Cost: the book is tokenized once; a haystack is a copy of T tokens.
#include "eval/book_haystack.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "base/result_macros.hpp"
#include "eval/seeded_choices.hpp"

namespace volvelle {
namespace {

constexpr std::array kRareWords{
    "zephyr",    "obsidian", "quagmire",  "lapwing",    "isthmus",  "gossamer",  "tourmaline",
    "parsnip",   "halberd",  "fulcrum",   "nimbus",     "marzipan", "cormorant", "balustrade",
    "vermilion", "sextant",  "quicklime", "thimble",    "bergamot", "pumice",    "catamaran",
    "oregano",   "talisman", "dromedary", "filigree",   "hyssop",   "juniper",   "kumquat",
    "lodestone", "mandrake", "narwhal",   "palimpsest", "rhubarb",  "saffron",   "turquoise",
    "umbrage",   "wainscot", "yarrow",    "zodiac",     "capstan"};

/// {w} is the word, {n} the number; the beginning ends where the number follows.
struct Phrasing {
  std::string_view sentence;
  std::string_view question;
  std::string_view beginning;
};
constexpr std::array<Phrasing, 4> kPhrasings{{
    {"The magic number for {w} is {n}.", "What is the magic number for {w}?",
     "The magic number for {w} is"},
    {"Remember that the secret code of {w} is {n}.", "What is the secret code of {w}?",
     "The secret code of {w} is"},
    {"In the register the entry for {w} bears the number {n}.",
     "Which number does the entry for {w} bear in the register?",
     "In the register the entry for {w} bears the number"},
    {"Everybody agreed that the price of {w} should be {n} pounds.",
     "How many pounds should the price of {w} be?",
     "Everybody agreed that the price of {w} should be"},
}};

std::string filled(std::string_view text, const std::string& word, const std::string& number) {
  std::string out(text);
  const auto put = [&](std::string_view mark, const std::string& value) {
    const std::size_t at = out.find(mark);
    if (at != std::string::npos) out.replace(at, mark.size(), value);
  };
  put("{w}", word);
  put("{n}", number);
  return out;
}

bool ends_sentence(std::string_view piece) {
  while (!piece.empty() && (piece.back() == '"' || piece.back() == '\n' || piece.back() == ' ')) {
    piece.remove_suffix(1);
  }
  return piece.ends_with('.') || piece.ends_with('!') || piece.ends_with('?');
}

Error no_room(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument,
               "needle: " + what + "; use a longer text, longer chunks or fewer needles"};
}

/// Copies the book from `begin` on and puts the facts, ordered by chunk, where they belong.
class Assembly {
 public:
  Assembly(const std::vector<TokenId>& opening, const std::vector<TokenId>& book,
           const std::vector<bool>& sentence_ends, std::size_t begin)
      : tokens_(opening), book_(book), sentence_ends_(sentence_ends), next_(begin) {}

  /// Places a fact inside [begin, end), behind what was placed before.
  Status place(const std::vector<TokenId>& fact, std::int64_t begin, std::int64_t end,
               SeededChoices& choices) {
    const std::int64_t first = std::max(begin, std::ssize(tokens_));
    const std::int64_t last = end - std::ssize(fact);
    if (first > last) {
      return no_room("a fact of " + std::to_string(fact.size()) +
                     " tokens does not fit between positions " + std::to_string(first) + " and " +
                     std::to_string(end));
    }
    std::vector<std::int64_t> places;  // behind a sentence
    for (std::int64_t p = std::max<std::int64_t>(first, std::ssize(tokens_) + 1); p <= last; ++p) {
      const auto before = next_ + static_cast<std::size_t>(p - std::ssize(tokens_)) - 1;
      if (sentence_ends_[before]) places.push_back(p);
    }
    const std::int64_t at =
        places.empty() ? first + static_cast<std::int64_t>(
                                     choices.below(static_cast<std::size_t>(last - first + 1)))
                       : places[choices.below(places.size())];
    copy_until(at);
    tokens_.insert(tokens_.end(), fact.begin(), fact.end());
    return {};
  }

  std::vector<TokenId> finish(std::int64_t n_tokens) {
    copy_until(n_tokens);
    return std::move(tokens_);
  }

 private:
  void copy_until(std::int64_t n_tokens) {
    while (std::ssize(tokens_) < n_tokens) tokens_.push_back(book_[next_++]);
  }

  std::vector<TokenId> tokens_;
  const std::vector<TokenId>& book_;
  const std::vector<bool>& sentence_ends_;
  std::size_t next_;
};

}  // namespace

Result<BookLibrary> BookLibrary::create(const Model& model, std::string_view book, bool chat) {
  BookLibrary library(model);
  VOLVELLE_ASSIGN_OR_RETURN(library.format_, make_chat_format(model, chat ? "chat" : "raw"));
  VOLVELLE_ASSIGN_OR_RETURN(
      TokenizedText opening,
      library.tokenizer_->tokenize(library.format_.before_document,
                                   {.add_special = true, .parse_special = true}));
  library.opening_ = std::move(opening.tokens);
  VOLVELLE_ASSIGN_OR_RETURN(TokenizedText text, library.tokenizer_->tokenize(book, {}));
  library.book_ = std::move(text.tokens);
  for (const ByteRange& range : text.ranges) {
    const bool placed = range.begin >= 0;
    library.ends_sentence_.push_back(
        placed && ends_sentence(book.substr(static_cast<std::size_t>(range.begin),
                                            static_cast<std::size_t>(range.end - range.begin))));
  }
  std::string lower(book);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* const word : kRareWords) {
    if (lower.find(word) == std::string::npos) library.words_.push_back(word);
  }
  return library;
}

Result<std::vector<TokenId>> BookLibrary::question_tokens(const NaturalFact& fact) const {
  std::string text(kQuestionSeparator);
  text += fact.question;
  if (is_chat()) text += " Answer with only the number.";
  VOLVELLE_ASSIGN_OR_RETURN(TokenizedText question, tokenizer_->tokenize(text, {}));
  if (!is_chat()) return std::move(question.tokens);
  VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText closing,
                            tokenizer_->tokenize(format_.after_question, {.parse_special = true}));
  question.tokens.insert(question.tokens.end(), closing.tokens.begin(), closing.tokens.end());
  return std::move(question.tokens);
}

/// Facts with words and numbers of their own, one for each word.
std::vector<NaturalFact> BookLibrary::invent(std::int64_t trial, std::size_t n,
                                             SeededChoices& choices) const {
  std::vector<std::string> words = words_;
  choices.shuffle(words);
  std::set<std::string> numbers;
  std::vector<NaturalFact> facts;
  for (std::size_t i = 0; i < n; ++i) {
    std::string number;
    do {
      number = std::to_string(10000 + choices.below(90000));
    } while (!numbers.insert(number).second);
    const auto& [sentence, question, beginning] =
        kPhrasings[(static_cast<std::size_t>(trial) + i) % kPhrasings.size()];
    facts.push_back({filled(sentence, words[i], number),
                     filled(is_chat() ? question : beginning, words[i], number), number});
  }
  return facts;
}

Result<BookHaystack> BookLibrary::make(const NaturalNeedleOptions& options, std::int64_t trial,
                                       const std::vector<std::int64_t>& distances) const {
  if (distances.size() > words_.size()) {
    return no_room(std::to_string(distances.size()) +
                   " needles need as many rare words, but only " + std::to_string(words_.size()) +
                   " are known that the book does not have");
  }
  const std::int64_t spare = std::ssize(book_) - options.tokens;
  if (spare < 1) {
    return no_room("the book has " + std::to_string(book_.size()) + " tokens, more than " +
                   std::to_string(options.tokens) + " are needed");
  }
  SeededChoices choices(options.seed, {trial, distances.front()});
  BookHaystack haystack;
  for (NaturalFact& fact : invent(trial, distances.size(), choices)) {
    VOLVELLE_ASSIGN_OR_RETURN(auto question, question_tokens(fact));
    haystack.needles.push_back(
        {std::move(fact), distances[haystack.needles.size()], std::move(question)});
  }
  std::stable_sort(haystack.needles.begin(), haystack.needles.end(),
                   [](const auto& a, const auto& b) { return a.distance > b.distance; });
  Assembly assembly(opening_, book_, ends_sentence_,
                    choices.below(static_cast<std::size_t>(spare)));
  for (const BookHaystack::Needle& needle : haystack.needles) {
    const std::int64_t begin = options.tokens - needle.distance * options.chunk;
    VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText fact,
                              tokenizer_->tokenize(" " + needle.fact.sentence, {}));
    VOLVELLE_RETURN_IF_ERROR(assembly.place(fact.tokens, begin, begin + options.chunk, choices));
  }
  haystack.tokens = assembly.finish(options.tokens);
  return haystack;
}

std::optional<std::string> first_five_digits(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end - i == 5) return std::string(text.substr(i, 5));
    i = std::max(end, i + 1);
  }
  return std::nullopt;
}

}  // namespace volvelle
