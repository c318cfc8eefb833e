// Documents and questions of the tasks. Everything that repeats is made of items (a line, a word);
// a document has as many as fit.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/result_macros.hpp"
#include "eval/seeded_choices.hpp"
#include "volvelle/eval/kv_tasks.hpp"

namespace volvelle {
namespace {

constexpr std::array kWords{
    "apple",   "anchor", "basket",  "beacon", "bottle",  "bridge",   "butter", "camera",  "candle",
    "carpet",  "castle", "cherry",  "circle", "copper",  "corner",   "cotton", "desert",  "dragon",
    "engine",  "falcon", "feather", "finger", "flower",  "forest",   "garden", "guitar",  "hammer",
    "harbor",  "helmet", "island",  "jacket", "jungle",  "kettle",   "ladder", "lantern", "lemon",
    "marble",  "market", "meadow",  "mirror", "monkey",  "mountain", "needle", "ocean",   "orange",
    "orchard", "paddle", "palace",  "paper",  "parrot",  "pencil",   "pepper", "piano",   "pillow",
    "planet",  "pocket", "prison",  "purple", "rabbit",  "ribbon",   "river",  "rocket",  "saddle",
    "school",  "shadow", "silver",  "spider", "square",  "station",  "summer", "sunset",  "table",
    "temple",  "ticket", "tiger",   "timber", "tunnel",  "turtle",   "valley", "velvet",  "village",
    "violin",  "wagon",  "walnut",  "water",  "whistle", "window",   "winter", "wizard",  "yellow",
    "zebra",   "bucket", "button",  "cabin",  "canvas",  "carrot",   "coffee", "dinner",  "doctor",
    "eagle"};

constexpr std::array kFiller{"The wind moved over the fields and the afternoon was quiet.",
                             "A clerk wrote the date on the first page and closed the book.",
                             "Somebody had left a lamp burning in the hall.",
                             "The road to the coast was dry, and few people used it.",
                             "They spoke about the weather and about the price of bread.",
                             "Two boats came in before noon and left again at dusk.",
                             "The old clock struck, and nobody looked up.",
                             "Rain fell on the roofs, and the gutters ran over."};

std::string word(SeededChoices& choices) { return kWords[choices.below(kWords.size())]; }
std::string five_digits(SeededChoices& choices) {
  return std::to_string(10000 + choices.below(90000));
}

/// Makes a document from items 0, 1, 2, ... with as many items as `budget` tokens hold. `make`
/// gives the whole text for a number of items.
template <class Make>
Result<std::string> fill(const Tokenizer& tokenizer, std::int64_t budget, Make make) {
  std::int64_t n = 16;
  const auto count = [&](const std::string& text) -> Result<std::int64_t> {
    VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText tokens, tokenizer.tokenize(text, {}));
    return std::ssize(tokens.tokens);
  };
  std::string best;
  for (int round = 0; round < 12; ++round) {
    std::string text = make(n);
    VOLVELLE_ASSIGN_OR_RETURN(const std::int64_t tokens, count(text));
    if (tokens <= budget) {
      const bool close = tokens * 100 >= budget * 97;
      best = std::move(text);
      if (close) return best;
    }
    const std::int64_t next =
        std::max<std::int64_t>(1, n * (budget * 99 / 100) / std::max<std::int64_t>(1, tokens));
    if (next == n) break;
    n = next;
  }
  if (!best.empty()) return best;
  return Error{ErrorCode::kInvalidArgument,
               "kv: " + std::to_string(budget) + " tokens are too few for this task; use more"};
}

struct Pair {
  std::string key;
  std::string value;
};

/// n pairs with keys and values of their own.
std::vector<Pair> make_pairs(std::int64_t n, SeededChoices choices) {
  std::vector<Pair> pairs;
  std::set<std::string> used;
  while (std::ssize(pairs) < n) {
    std::string key =
        word(choices) + "-" + word(choices) + "-" + std::to_string(choices.below(90) + 10);
    if (used.insert(key).second) pairs.push_back({std::move(key), five_digits(choices)});
  }
  return pairs;
}

Result<KvDocument> key_value(const Tokenizer& tokenizer, const KvTaskOptions& options,
                             const SeededChoices& choices) {
  std::vector<Pair> pairs;
  KvDocument document;
  VOLVELLE_ASSIGN_OR_RETURN(document.text, fill(tokenizer, options.tokens, [&](std::int64_t n) {
                              pairs = make_pairs(n, choices);
                              std::string text = "Here is a list of keys and their values.\n";
                              for (const Pair& pair : pairs)
                                text +=
                                    "The value of key " + pair.key + " is " + pair.value + ".\n";
                              return text;
                            }));
  // Evenly over the list, at a place of its own in each stretch. The last try of fill() may have
  // been a longer one, so only pairs that are in the text count.
  while (!pairs.empty() && document.text.find(pairs.back().key) == std::string::npos)
    pairs.pop_back();
  SeededChoices places = choices;
  for (std::int64_t i = 0; i < options.questions; ++i) {
    const std::int64_t n = std::ssize(pairs);
    const std::int64_t first = n * i / options.questions;
    const std::int64_t end = std::max(first + 1, n * (i + 1) / options.questions);
    const Pair& pair = pairs[static_cast<std::size_t>(std::min(
        n - 1,
        first + static_cast<std::int64_t>(places.below(static_cast<std::size_t>(end - first)))))];
    document.questions.push_back(
        {"What is the value of key " + pair.key + "? Answer with only the number.",
         {pair.value},
         24});
  }
  return document;
}

std::string name_of(std::int64_t i) {
  std::string name = "X";
  for (int k = 0; k < 3; ++k, i /= 26) name += static_cast<char>('A' + i % 26);
  return name;
}

/// A chain of assignments and others that lead elsewhere, evenly spread over filler sentences.
Result<KvDocument> multi_hop(const Tokenizer& tokenizer, const KvTaskOptions& options,
                             SeededChoices choices) {
  constexpr std::int64_t kHops = 4;
  constexpr std::int64_t kChains = 3;
  std::vector<std::string> lines;
  KvDocument document;
  for (std::int64_t chain = 0; chain < kChains; ++chain) {
    const std::string value = five_digits(choices);
    std::vector<std::string> names;
    for (std::int64_t hop = 0; hop <= kHops; ++hop) {
      const auto number =
          static_cast<std::int64_t>(choices.below(26 * 26)) * 26 + chain * kHops * 2 + hop;
      names.push_back(name_of(number));
      lines.push_back("VAR " + names.back() + " = " +
                      (hop == 0 ? value : "VAR " + names[names.size() - 2]) + ".");
    }
    if (chain == 0)
      document.questions.push_back(
          {"Which variables have the value " + value + "? List their names.", names, 64});
  }
  // Chains are mixed, but each keeps its order: references point backwards.
  std::vector<std::string> mixed;
  for (std::int64_t hop = 0; hop <= kHops; ++hop) {
    for (std::int64_t chain = 0; chain < kChains; ++chain)
      mixed.push_back(lines[static_cast<std::size_t>(chain * (kHops + 1) + hop)]);
  }
  VOLVELLE_ASSIGN_OR_RETURN(document.text, fill(tokenizer, options.tokens, [&](std::int64_t n) {
                              std::string text = "Remember the assignments in this text.\n";
                              std::size_t next = 0;
                              for (std::int64_t i = 0; i < n; ++i) {
                                text += kFiller[static_cast<std::size_t>(i) % kFiller.size()];
                                text += '\n';
                                while (next < mixed.size() && static_cast<std::int64_t>(next) * n <
                                                                  (i + 1) * std::ssize(mixed))
                                  text += mixed[next++] + "\n";
                              }
                              return text;
                            }));
  return document;
}

/// Ten words nine times as often as the others.
Result<KvDocument> common_words(const Tokenizer& tokenizer, const KvTaskOptions& options,
                                SeededChoices choices) {
  std::vector<std::string> words(kWords.begin(), kWords.end());
  choices.shuffle(words);
  const std::vector<std::string> common(words.begin(), words.begin() + 10);
  KvDocument document;
  const SeededChoices order = choices;
  VOLVELLE_ASSIGN_OR_RETURN(
      document.text, fill(tokenizer, options.tokens, [&](std::int64_t n) {
        // Every other place for the ten, the rest for the ninety others in turn.
        std::vector<std::string> list;
        for (std::int64_t i = 0; i < n; ++i) {
          list.push_back(i % 2 == 0
                             ? common[static_cast<std::size_t>(i / 2) % common.size()]
                             : words[10 + static_cast<std::size_t>(i / 2) % (words.size() - 10)]);
        }
        SeededChoices again = order;
        again.shuffle(list);
        std::string text =
            "Here is a list of words, some of which occur much more often than others.\n";
        for (std::size_t i = 0; i < list.size(); ++i)
          text += std::to_string(i + 1) + ". " + list[i] + "\n";
        return text;
      }));
  document.questions.push_back({"Which 10 words occur most often in the list?", common, 80});
  return document;
}

/// Invented words whose frequency falls with the square of their rank.
Result<KvDocument> frequent_words(const Tokenizer& tokenizer, const KvTaskOptions& options,
                                  SeededChoices choices) {
  constexpr std::array kSyllables{"ba", "ke", "li", "mo", "nu", "po",
                                  "ra", "si", "ta", "vu", "zo", "fe"};
  std::set<std::string> unique;
  std::vector<std::string> words;
  while (words.size() < 40) {
    std::string invented;
    for (int k = 0; k < 3; ++k) invented += kSyllables[choices.below(kSyllables.size())];
    if (unique.insert(invented).second) words.push_back(std::move(invented));
  }
  std::vector<double> up_to;
  double sum = 0.0;
  for (std::size_t i = 0; i < words.size(); ++i)
    up_to.push_back(sum += 1.0 / static_cast<double>((i + 1) * (i + 1)));
  KvDocument document;
  const SeededChoices order = choices;
  VOLVELLE_ASSIGN_OR_RETURN(
      document.text, fill(tokenizer, options.tokens, [&](std::int64_t n) {
        SeededChoices again = order;
        std::string text = "Read this coded text and keep track of its words.\n";
        for (std::int64_t i = 0; i < n; ++i) {
          const double at = sum * static_cast<double>(again.below(1U << 20)) / (1U << 20);
          const auto rank = std::upper_bound(up_to.begin(), up_to.end(), at) - up_to.begin();
          text += words[static_cast<std::size_t>(rank)] + (i % 12 == 11 ? ".\n" : " ");
        }
        return text;
      }));
  document.questions.push_back({"What are the three most frequent words in the coded text?",
                                {words.begin(), words.begin() + 3},
                                40});
  return document;
}

}  // namespace

std::string_view to_string(KvTask task) noexcept {
  switch (task) {
    case KvTask::kKeyValue:
      return "key_value";
    case KvTask::kMultiHop:
      return "multi_hop";
    case KvTask::kCommonWords:
      return "common_words";
    case KvTask::kFrequentWords:
      return "frequent_words";
    case KvTask::kMultiTurn:
      return "multi_turn";
  }
  return "";
}

const std::vector<KvTask>& all_kv_tasks() {
  static const std::vector<KvTask> tasks = {KvTask::kKeyValue, KvTask::kMultiHop,
                                            KvTask::kCommonWords, KvTask::kFrequentWords,
                                            KvTask::kMultiTurn};
  return tasks;
}

Result<KvDocument> make_kv_document(KvTask task, const Tokenizer& tokenizer,
                                    const KvTaskOptions& options, std::int64_t trial) {
  const SeededChoices choices(options.seed, {static_cast<std::int64_t>(task), trial});
  switch (task) {
    case KvTask::kKeyValue:
    case KvTask::kMultiTurn:
      return key_value(tokenizer, options, choices);
    case KvTask::kMultiHop:
      return multi_hop(tokenizer, options, choices);
    case KvTask::kCommonWords:
      return common_words(tokenizer, options, choices);
    case KvTask::kFrequentWords:
      return frequent_words(tokenizer, options, choices);
  }
  return Error{ErrorCode::kInvalidArgument, "kv: unknown task"};
}

double kv_score(const KvQuestion& question, std::string_view text) {
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  const auto occurs = [&](const std::string& answer) {
    for (std::size_t at = text.find(answer); at != std::string_view::npos;
         at = text.find(answer, at + 1)) {
      const std::size_t end = at + answer.size();
      if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end])))
        return true;
    }
    return false;
  };
  if (question.answers.empty()) return 0.0;
  const auto found = std::count_if(question.answers.begin(), question.answers.end(), occurs);
  return static_cast<double>(found) / static_cast<double>(question.answers.size());
}

}  // namespace volvelle
