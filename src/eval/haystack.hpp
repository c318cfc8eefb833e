// Haystacks for the wired retriever: filler words with facts "key value" hidden in them.
//
//   <s> f12 f03 k17 v42 f30 ... k17      the last word asks; the one right answer is v42
//
// Rules that the retriever's construction asks for: the first token is no key (its previous token
// would be itself); a key stands only where its value follows; no key and no value occurs twice, so
// exactly one token of the haystack is the answer.
#pragma once

#include <cstdint>
#include <vector>

#include "volvelle/base/result.hpp"
#include "volvelle/eval/needle.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {

/// Token ids of the retriever's words.
struct RetrieverWords {
  TokenId begin = 0;             // what a text starts with
  TokenId none = 0;              // the answer to a key that was never given
  std::vector<TokenId> fillers;  // f00..f31
  std::vector<TokenId> keys;     // k00..k63
  std::vector<TokenId> values;   // v00..v63
};
/// Looks the words up by their text; refuses, by name, a model that lacks one.
Result<RetrieverWords> find_retriever_words(const Model& model);

struct Fact {
  TokenId key = 0;
  TokenId value = 0;
};

struct Haystack {
  std::vector<TokenId> tokens;       // [options.tokens]
  std::vector<Fact> needles;         // one for each entry of options.distances, in that order
  std::vector<TokenId> absent_keys;  // [options.absent], nowhere in tokens
};

/// Facts at random places beside the needles.
inline constexpr std::int64_t kDistractors = 8;

/// The haystack of one trial: the same for the same options and trial on every platform.
Result<Haystack> make_haystack(const RetrieverWords& words, const NeedleOptions& options,
                               std::int64_t trial);

}  // namespace volvelle
