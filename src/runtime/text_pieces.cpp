// Pieces become runs: one call of the tokenizer each. A run knows where contents are inside it, and
// a token across the border of a content counts with what it has inside.
#include "runtime/text_pieces.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/result_macros.hpp"

namespace volvelle {
namespace {

struct Body {
  std::int64_t begin;  // in the run
  std::int64_t end;
  std::int64_t offset;  // as in TextPiece
};

struct Run {
  std::string text;
  std::vector<Body> bodies;
  TokenizeOptions options;

  void add(const TextPiece& piece) {
    const std::int64_t begin = std::ssize(text);
    text += piece.text;
    if (piece.is_content) bodies.push_back({begin, std::ssize(text), piece.offset});
  }
};

/// Whether the contents hold the text of a control token.
Result<bool> is_risky(const Tokenizer& tokenizer, std::span<const TextPiece> contents) {
  std::string text;
  for (const TextPiece& piece : contents) text += piece.text;
  VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText plain, tokenizer.tokenize(text, {}));
  VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText parsed,
                            tokenizer.tokenize(text, {.parse_special = true}));
  return plain.tokens != parsed.tokens;
}

Result<std::vector<Run>> make_runs(const Tokenizer& tokenizer, std::span<const TextPiece> pieces) {
  std::vector<Run> runs(1);
  runs.front().options = {.add_special = true, .parse_special = true};
  while (!pieces.empty()) {
    const bool is_content = pieces.front().is_content;
    const auto end = std::find_if(pieces.begin(), pieces.end(), [&](const TextPiece& piece) {
      return piece.is_content != is_content;
    });
    const auto group = pieces.first(static_cast<std::size_t>(end - pieces.begin()));
    pieces = pieces.subspan(group.size());
    bool risky = false;
    if (is_content) {
      VOLVELLE_ASSIGN_OR_RETURN(risky, is_risky(tokenizer, group));
    }
    if (risky) runs.push_back({});
    for (const TextPiece& piece : group) runs.back().add(piece);
    if (risky) runs.push_back({{}, {}, {.parse_special = true}});
  }
  return runs;
}

/// What of a token lies in a content, as a range of the text that ranges refer to.
ByteRange place(const Run& run, ByteRange token) {
  if (token.begin < 0) return {};
  const auto body = std::find_if(run.bodies.begin(), run.bodies.end(), [&](const Body& b) {
    return token.end > b.begin && token.begin < b.end;
  });
  if (body == run.bodies.end() || body->offset < 0) return {};
  return {std::max(token.begin, body->begin) - body->begin + body->offset,
          std::min(token.end, body->end) - body->begin + body->offset};
}

/// The first token of the run that is behind the beginning of its first content.
std::int64_t first_of_text(const Run& run, std::span<const ByteRange> tokens) {
  const std::int64_t begin = run.bodies.front().begin;
  if (begin == 0 && !run.options.add_special) return 0;
  const auto first = std::find_if(tokens.begin(), tokens.end(),
                                  [&](const ByteRange& range) { return range.end > begin; });
  return first - tokens.begin();
}

}  // namespace

Result<DocumentTokens> tokenize_pieces(const Tokenizer& tokenizer,
                                       std::span<const TextPiece> pieces) {
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<Run> runs, make_runs(tokenizer, pieces));
  DocumentTokens out;
  std::optional<std::int64_t> text_begin;
  for (Run& run : runs) {
    if (run.text.empty() && !run.options.add_special) continue;
    VOLVELLE_ASSIGN_OR_RETURN(const TokenizedText text, tokenizer.tokenize(run.text, run.options));
    if (!text_begin && !run.bodies.empty())
      text_begin = std::ssize(out.tokens) + first_of_text(run, text.ranges);
    out.tokens.insert(out.tokens.end(), text.tokens.begin(), text.tokens.end());
    for (const ByteRange& range : text.ranges) {
      out.ranges.push_back(place(run, range));
      // Tokens stand in the order of the text, so contents behind are of no more use.
      while (run.bodies.size() > 1 && range.begin >= run.bodies.front().end)
        run.bodies.erase(run.bodies.begin());
    }
  }
  out.text_begin_token = text_begin.value_or(std::ssize(out.tokens));
  return out;
}

}  // namespace volvelle
