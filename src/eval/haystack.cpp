// See haystack.hpp. Random choices are the same on every platform. Cost: O(tokens) for each fact
// placed.
#include "eval/haystack.hpp"

#include <cctype>
#include <optional>
#include <string>
#include <string_view>

#include "base/result_macros.hpp"
#include "eval/seeded_choices.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kFillers = 32;
constexpr std::int64_t kKeys = 64;
constexpr TokenId kMissing = -1;

/// "k07" -> 7 for letter 'k'; nothing for any other text.
std::optional<std::size_t> numbered_word(std::string_view text, char letter) {
  if (text.size() != 3 || text[0] != letter) return std::nullopt;
  if (std::isdigit(static_cast<unsigned char>(text[1])) == 0) return std::nullopt;
  if (std::isdigit(static_cast<unsigned char>(text[2])) == 0) return std::nullopt;
  return static_cast<std::size_t>((text[1] - '0') * 10 + (text[2] - '0'));
}

void remember(std::vector<TokenId>& words, char letter, std::string_view text, TokenId token) {
  const auto index = numbered_word(text, letter);
  if (index && *index < words.size() && words[*index] == kMissing) words[*index] = token;
}

Status require_all(const std::vector<TokenId>& words, char letter, const std::string& model) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != kMissing) continue;
    const std::string word = {letter, static_cast<char>('0' + i / 10),
                              static_cast<char>('0' + i % 10)};
    return Error{ErrorCode::kUnsupported, "needle: model '" + model + "' has no token '" + word +
                                              "'; the test needs the wired retriever's vocabulary "
                                              "(wired-retriever.gguf)"};
  }
  return {};
}

/// What the tokenizer puts in front of a text; a filler if it puts nothing.
Result<TokenId> begin_token(const Model& model, const RetrieverWords& words) {
  VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText text,
                            model.tokenizer().tokenize("f00", {.add_special = true}));
  const std::size_t n = text.tokens.size();
  if (n < 1 || n > 2 || text.tokens.back() != words.fillers[0]) {
    return Error{ErrorCode::kUnsupported,
                 "needle: model '" + model.info().name + "' makes " + std::to_string(n) +
                     " tokens of the word 'f00'; the test needs a tokenizer with one token a word"};
  }
  return text.tokens.front();
}

class HaystackBuilder {
 public:
  HaystackBuilder(const RetrieverWords& words, std::uint64_t seed, std::int64_t trial)
      : words_(words), choices_(seed, {trial}), keys_(words.keys), values_(words.values) {
    choices_.shuffle(keys_);
    choices_.shuffle(values_);
  }

  void fill(std::int64_t n_tokens) {
    free_.assign(static_cast<std::size_t>(n_tokens), true);
    tokens_.resize(free_.size());
    for (TokenId& token : tokens_) token = words_.fillers[choices_.below(words_.fillers.size())];
    tokens_[0] = words_.begin;
    free_[0] = false;
  }

  /// Puts a new fact at a random free place inside [begin, end).
  Result<Fact> place(std::int64_t begin, std::int64_t end) {
    std::vector<std::size_t> places;
    for (auto i = static_cast<std::size_t>(begin); i + 1 < static_cast<std::size_t>(end); ++i) {
      if (free_[i] && free_[i + 1]) places.push_back(i);
    }
    if (places.empty()) {
      return Error{ErrorCode::kInvalidArgument,
                   "needle: no room for a fact of two tokens between positions " +
                       std::to_string(begin) + " and " + std::to_string(end) +
                       "; use longer chunks or fewer distances"};
    }
    const std::size_t at = places[choices_.below(places.size())];
    const Fact fact = take_fact();
    tokens_[at] = fact.key;
    tokens_[at + 1] = fact.value;
    free_[at] = free_[at + 1] = false;
    return fact;
  }

  /// A key that no fact has or will have.
  TokenId take_key() { return keys_[keys_taken_++]; }
  std::vector<TokenId> take_tokens() { return std::move(tokens_); }

 private:
  Fact take_fact() {
    const TokenId value = values_[keys_taken_];
    return {take_key(), value};
  }

  const RetrieverWords& words_;
  SeededChoices choices_;
  std::vector<TokenId> keys_;
  std::vector<TokenId> values_;
  std::size_t keys_taken_ = 0;
  std::vector<TokenId> tokens_;
  std::vector<bool> free_;
};

}  // namespace

Result<RetrieverWords> find_retriever_words(const Model& model) {
  RetrieverWords words;
  words.none = kMissing;
  words.fillers.assign(kFillers, kMissing);
  words.keys.assign(kKeys, kMissing);
  words.values.assign(kKeys, kMissing);
  const Tokenizer& tokenizer = model.tokenizer();
  for (TokenId token = 0; token < tokenizer.n_vocab(); ++token) {
    const std::string piece = tokenizer.piece(token);
    // A word's token carries the space in front of it.
    const std::string_view text =
        piece.starts_with(' ') ? std::string_view(piece).substr(1) : std::string_view(piece);
    remember(words.fillers, 'f', text, token);
    remember(words.keys, 'k', text, token);
    remember(words.values, 'v', text, token);
    if (text == "none" && words.none == kMissing) words.none = token;
  }
  const std::string& name = model.info().name;
  VOLVELLE_RETURN_IF_ERROR(require_all(words.keys, 'k', name));
  VOLVELLE_RETURN_IF_ERROR(require_all(words.values, 'v', name));
  VOLVELLE_RETURN_IF_ERROR(require_all(words.fillers, 'f', name));
  if (words.none == kMissing) {
    return Error{ErrorCode::kUnsupported, "needle: model '" + name +
                                              "' has no token 'none'; the test needs the wired "
                                              "retriever's vocabulary (wired-retriever.gguf)"};
  }
  VOLVELLE_ASSIGN_OR_RETURN(words.begin, begin_token(model, words));
  return words;
}

Result<Haystack> make_haystack(const RetrieverWords& words, const NeedleOptions& options,
                               std::int64_t trial) {
  const auto n_facts = static_cast<std::int64_t>(options.distances.size()) + kDistractors;
  if (n_facts + options.absent > kKeys) {
    return Error{ErrorCode::kInvalidArgument,
                 "needle: " + std::to_string(options.distances.size()) + " distances, " +
                     std::to_string(kDistractors) + " other facts and " +
                     std::to_string(options.absent) + " absent keys need more than the " +
                     std::to_string(kKeys) + " keys there are; ask for fewer distances"};
  }
  HaystackBuilder builder(words, options.seed, trial);
  builder.fill(options.tokens);
  Haystack haystack;
  const std::int64_t question_chunk = options.tokens / options.chunk;
  for (const std::int64_t distance : options.distances) {
    const std::int64_t begin = (question_chunk - distance) * options.chunk;
    VOLVELLE_ASSIGN_OR_RETURN(const Fact needle, builder.place(begin, begin + options.chunk));
    haystack.needles.push_back(needle);
  }
  for (std::int64_t i = 0; i < kDistractors; ++i) {
    VOLVELLE_RETURN_IF_ERROR(builder.place(0, options.tokens));
  }
  for (std::int64_t i = 0; i < options.absent; ++i) {
    haystack.absent_keys.push_back(builder.take_key());
  }
  haystack.tokens = builder.take_tokens();
  return haystack;
}

}  // namespace volvelle
