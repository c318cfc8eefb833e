// Passages as JSON and as text. Around a passage at most kAround bytes are shown, cut where a word
// begins, so that no character is split; line breaks become spaces.
#include "evidence.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/result_macros.hpp"

namespace volvelle::cli {

namespace {

constexpr std::size_t kAround = 80;  // bytes before and behind a passage

std::string_view slice(std::string_view text, const ByteRange& range) {
  return text.substr(static_cast<std::size_t>(range.begin),
                     static_cast<std::size_t>(range.end - range.begin));
}

std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return escape_controls(line);
}

std::string before(std::string_view text, std::size_t end) {
  if (end <= kAround) return one_line(text.substr(0, end));
  const std::size_t space = text.find_first_of(" \n", end - kAround);
  const std::size_t begin = space == std::string_view::npos ? end : std::min(space + 1, end);
  return "... " + one_line(text.substr(begin, end - begin));
}

std::string behind(std::string_view text, std::size_t begin) {
  if (text.size() - begin <= kAround) return one_line(text.substr(begin));
  const std::size_t space = text.find_last_of(" \n", begin + kAround);
  const std::size_t end = space == std::string_view::npos || space < begin ? begin : space;
  return one_line(text.substr(begin, end - begin)) + " ...";
}

const TextSource* source_of(const Passage& passage, std::span<const TextSource> sources) {
  const auto found = std::find_if(sources.begin(), sources.end(), [&](const TextSource& source) {
    return passage.range.begin >= source.range.begin && passage.range.begin < source.range.end;
  });
  return found == sources.end() ? nullptr : &*found;
}

}  // namespace

EvidenceWatch::EvidenceWatch(Session& session, EvidenceCollector collector, std::int64_t begin)
    : session_(&session),
      collector_(std::make_unique<EvidenceCollector>(std::move(collector))),
      begin_(begin) {
  session.set_observer([collector = collector_.get()](LayerIndex layer, const AttendTask& task) {
    collector->observe(layer, task);
  });
}

EvidenceWatch::~EvidenceWatch() {
  if (collector_) session_->set_observer(nullptr);
}

Result<EvidenceWatch> EvidenceWatch::start(Session& session, const ContextMemory& memory,
                                           std::int64_t begin, std::int64_t end) {
  VOLVELLE_ASSIGN_OR_RETURN(EvidenceCollector collector,
                            EvidenceCollector::create(memory, begin, end));
  return EvidenceWatch(session, std::move(collector), begin);
}

Result<std::vector<Passage>> EvidenceWatch::passages(std::span<const ByteRange> ranges,
                                                     std::string_view text,
                                                     std::int64_t count) const {
  VOLVELLE_RETURN_IF_ERROR(collector_->status());
  const std::span<const double> scores = collector_->scores();
  return find_passages(scores, ranges.subspan(static_cast<std::size_t>(begin_), scores.size()),
                       text, count);
}

Json evidence_json(std::span<const Passage> passages, std::string_view text,
                   std::span<const TextSource> sources) {
  Json rows = Json::array();
  for (const Passage& passage : passages) {
    const TextSource* const source = source_of(passage, sources);
    rows.push_back({{"start", passage.range.begin},
                    {"end", passage.range.end},
                    {"text", slice(text, passage.range)},
                    {"weight", passage.weight},
                    {"source", source != nullptr ? Json(source->name) : Json()}});
  }
  return rows;
}

std::string evidence_text(std::span<const Passage> passages, std::string_view text,
                          std::span<const TextSource> sources, bool colour) {
  if (passages.empty()) return "evidence: no passage stands out\n";
  const char* const on = colour ? "\x1b[1;33m" : "[[";
  const char* const off = colour ? "\x1b[0m" : "]]";
  std::string out = "evidence: where question and answer attended to\n";
  for (const Passage& passage : passages) {
    const TextSource* const source = source_of(passage, sources);
    out += fmt::format("{:5.1f} %  bytes {}-{}{}\n  {}{}{}{}{}\n", 100 * passage.weight,
                       passage.range.begin, passage.range.end,
                       source != nullptr ? " of " + escape_controls(source->name) : "",
                       before(text, static_cast<std::size_t>(passage.range.begin)), on,
                       one_line(slice(text, passage.range)), off,
                       behind(text, static_cast<std::size_t>(passage.range.end)));
  }
  return out;
}

bool stdout_has_colour() {
  const char* const refused = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (refused == nullptr || *refused == '\0');
}

}  // namespace volvelle::cli
