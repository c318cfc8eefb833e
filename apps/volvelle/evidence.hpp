// Evidence of an answer, as `ask --evidence` and `/evidence` of a chat show it: the passages that
// question and answer attended to, with the text around them. It shows where attention went; it
// does not prove that the answer follows from there.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "output.hpp"
#include "volvelle/memory/evidence.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle::cli {

/// Observes a session from its creation to its destruction. The session must outlive it.
class EvidenceWatch {
 public:
  /// The document is the tokens [begin, end) of `memory`, which have been read.
  static Result<EvidenceWatch> start(Session& session, const ContextMemory& memory,
                                     std::int64_t begin, std::int64_t end);
  EvidenceWatch(EvidenceWatch&&) noexcept = default;
  EvidenceWatch& operator=(EvidenceWatch&&) = delete;
  ~EvidenceWatch();

  /// The heaviest passages. `ranges` are the places in `text` of all tokens of the memory.
  Result<std::vector<Passage>> passages(std::span<const ByteRange> ranges, std::string_view text,
                                        std::int64_t count) const;

 private:
  EvidenceWatch(Session& session, EvidenceCollector collector, std::int64_t begin);

  Session* session_;
  std::unique_ptr<EvidenceCollector> collector_;  // the observer points to it
  std::int64_t begin_;
};

/// [{start, end, text, weight, source}], bytes of `text`.
Json evidence_json(std::span<const Passage> passages, std::string_view text,
                   std::span<const TextSource> sources);
/// For people: each passage between the words around it, highlighted if `colour`.
std::string evidence_text(std::span<const Passage> passages, std::string_view text,
                          std::span<const TextSource> sources, bool colour);
/// Whether stdout is a terminal that wants colour (NO_COLOR is respected).
bool stdout_has_colour();

}  // namespace volvelle::cli
