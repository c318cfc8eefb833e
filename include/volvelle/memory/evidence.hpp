// Evidence: which passages of the document did the queries after it attend to.
//
//   for every query (token, layer, head), over its far rows F:
//     m = sum_F w_j,   c = sum_F (w_j / m)^2,   score_j += c^2 w_j
//
// w are attention weights (attention/weights.hpp). F are the document's rows without the first ones
// (they serve as sinks), and without the query's own neighbourhood. Of a model whose layers see
// differently far only those that see farthest are asked: narrow windows have sinks of their own. c
// is 1 over the effective number of rows: heads that spread over everything, which have most of the
// far mass, count almost nothing, heads that look something up decide. c^2 was chosen by experiment
// among c, c^1.5, c^2 and window maxima; plain mass finds nothing.
//
// This shows where attention went. It does not prove that an answer follows from the passage.
// Cost: per query 2 L H D rows FLOPs, on one engine thread; memory 8 bytes a document token and
// group of layers, 8 for its score, and the weights of one KV head.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "volvelle/memory/memory_file.hpp"

namespace volvelle {

struct EvidenceOptions {
  std::int64_t skip_first = 4;      // positions at the start of the sequence
  std::int64_t neighbourhood = 16;  // rows before a query, itself included
};

/// Thread-compatible. Observes one memory's queries; see AttentionObserver.
class EvidenceCollector {
 public:
  /// The document is the tokens [begin, end) of `memory`, which must have been read.
  static Result<EvidenceCollector> create(const ContextMemory& memory, std::int64_t begin,
                                          std::int64_t end, EvidenceOptions options = {});

  /// Adds the queries of one layer.
  void observe(LayerIndex layer, const AttendTask& task) noexcept;
  /// An error if an observation could not be made.
  Status status() const;
  /// [end - begin], of each document token.
  std::span<const double> scores() const noexcept { return scores_; }

 private:
  /// Rows of a group of layers that hold document tokens, [first_row, first_row + tokens.size()).
  struct DocumentRows {
    bool sees_farthest = false;
    std::int64_t first_row = 0;
    std::vector<std::int64_t> tokens;  // of the document, ascending
  };
  EvidenceCollector() = default;
  void observe_token(const DocumentRows& rows, const AttendTask& task, std::int64_t token);
  void add_head(const DocumentRows& rows, const VisibleRows& visible,
                std::span<const float> weights) noexcept;

  EvidenceOptions options_;
  std::vector<DocumentRows> groups_;
  std::vector<int> group_of_layer_;
  std::vector<double> scores_;
  std::vector<float> weights_;
  bool failed_ = false;
};

struct Passage {
  ByteRange range;    // of the text: whole sentences, unless they are very long
  double weight = 0;  // share of all scores, 0 to 1
  bool operator==(const Passage&) const = default;
};

/// The at most `count` passages with the highest scores, not overlapping, heaviest first: each is
/// grown from a window of 8 tokens to the borders of its sentences. `ranges` are the places in
/// `text` of the tokens that `scores` belong to.
std::vector<Passage> find_passages(std::span<const double> scores,
                                   std::span<const ByteRange> ranges, std::string_view text,
                                   std::int64_t count);

}  // namespace volvelle
