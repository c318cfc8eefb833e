// Passages from scores of tokens: the heaviest window of tokens that are still free, cut to the
// part that carries its score, grown to the borders of its sentences but not into other passages;
// then the next. Cost: one pass over the tokens for each passage.
#include <algorithm>

#include "memory/sentences.hpp"
#include "volvelle/memory/evidence.hpp"

namespace volvelle {
namespace {

constexpr std::size_t kWindow = 8;   // tokens; short, since sentences complete it
constexpr double kNegligible = 0.1;  // share of a window's score: ends with less are cut off
constexpr double kTaken = -1;        // score of a token that is in a passage

class PassageFinder {
 public:
  PassageFinder(std::span<const double> scores, std::span<const ByteRange> ranges,
                std::string_view text)
      : ranges_(ranges), text_(text), free_(scores.begin(), scores.end()) {
    const std::size_t n = std::min(free_.size(), ranges.size());
    free_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (!has_place(i)) free_[i] = 0;  // a token without a place in the text is no evidence
      total_ += free_[i];
    }
  }

  /// The next passage; its weight is 0 if nothing is left.
  Passage next() {
    const auto [first, last] = heaviest();
    if (first > last) return {};
    const ByteRange bytes = grown(first, last);
    double score = 0;
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (!has_place(i) || ranges_[i].begin >= bytes.end || ranges_[i].end <= bytes.begin) continue;
      if (free_[i] != kTaken) score += free_[i];
      free_[i] = kTaken;
    }
    taken_.push_back(bytes);
    return {bytes, score / total_};
  }

 private:
  bool has_place(std::size_t i) const noexcept {
    const ByteRange& r = ranges_[i];
    return r.begin >= 0 && r.begin < r.end && r.end <= static_cast<std::int64_t>(text_.size());
  }

  /// First token of the window that ends with token `i`.
  static std::size_t window_begin(std::size_t i, std::size_t start) noexcept {
    return std::max(start, i + 1 - std::min(kWindow, i + 1));
  }

  /// First and last token of the heaviest window, without negligible ends; first > last if there is
  /// none.
  std::pair<std::size_t, std::size_t> heaviest() const noexcept {
    double best = 0;
    std::size_t end = 0;
    std::size_t best_start = 0;
    std::size_t start = 0;  // behind the last token that is in a passage
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (free_[i] == kTaken) start = i + 1;
      double sum = 0;
      for (std::size_t j = window_begin(i, start); j <= i; ++j) sum += free_[j];
      if (sum > best) best = sum, end = i + 1, best_start = start;
    }
    if (best <= 0) return {1, 0};
    std::size_t first = window_begin(end - 1, best_start);
    std::size_t last = end - 1;
    while (first < last && free_[first] < kNegligible * best) ++first;
    while (last > first && free_[last] < kNegligible * best) --last;
    return {first, last};
  }

  /// The sentences of these tokens, up to the passages that were taken before.
  ByteRange grown(std::size_t first, std::size_t last) const noexcept {
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const ByteRange inner{ranges_[first].begin, ranges_[last].end};
    // A token's white space in front belongs to it, but not to its sentence.
    std::int64_t word = inner.begin;
    while (word + 1 < ranges_[first].end && is_blank(text_[size(word)])) ++word;
    ByteRange bytes{static_cast<std::int64_t>(sentence_begin(text_, size(word))),
                    static_cast<std::int64_t>(sentence_end(text_, size(inner.end - 1)))};
    bytes.end = std::max(bytes.end, bytes.begin + 1);
    for (const ByteRange& other : taken_) {
      if (other.end <= word) bytes.begin = std::max(bytes.begin, other.end);
      if (other.begin >= inner.end) bytes.end = std::min(bytes.end, other.begin);
    }
    while (bytes.begin + 1 < bytes.end && is_blank(text_[size(bytes.begin)])) ++bytes.begin;
    while (bytes.begin + 1 < bytes.end && is_blank(text_[size(bytes.end - 1)])) --bytes.end;
    return bytes;
  }

  static bool is_blank(char c) noexcept { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

  std::span<const ByteRange> ranges_;
  std::string_view text_;
  std::vector<double> free_;  // scores, kTaken for tokens that are in a passage
  double total_ = 0;
  std::vector<ByteRange> taken_;
};

}  // namespace

std::vector<Passage> find_passages(std::span<const double> scores,
                                   std::span<const ByteRange> ranges, std::string_view text,
                                   std::int64_t count) {
  std::vector<Passage> passages;
  PassageFinder finder(scores, ranges, text);
  while (static_cast<std::int64_t>(passages.size()) < count) {
    const Passage passage = finder.next();
    if (passage.weight <= 0) break;
    passages.push_back(passage);
  }
  // Sentences bring what lies around a window, so a later passage may weigh more.
  std::stable_sort(passages.begin(), passages.end(),
                   [](const Passage& a, const Passage& b) { return a.weight > b.weight; });
  return passages;
}

}  // namespace volvelle
