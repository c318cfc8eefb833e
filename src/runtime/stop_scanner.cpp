// A match begins at or behind the first byte that is held back, so only held and new bytes are
// searched; see the header for which of several matches counts.
#include "runtime/stop_scanner.hpp"

#include <algorithm>
#include <utility>

#include "io/message.hpp"
#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle {

Status StopScanner::check(std::span<const std::string> stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) {
      return Error{ErrorCode::kInvalidArgument,
                   "generate: a stop string is empty; give at least one character"};
    }
    if (find_invalid_utf8(stop) != std::string::npos) {
      return Error{ErrorCode::kInvalidArgument,
                   "generate: the stop string " + io::quoted(stop) +
                       " is not valid UTF-8, but generated text always is"};
    }
  }
  return {};
}

std::string StopScanner::push(std::string_view text) {
  if (found_ || text.empty()) return {};
  pending_ += text;
  std::size_t begin = std::string::npos;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = pending_.find(stop);
    if (at == std::string::npos) continue;
    const std::size_t stop_end = at + stop.size();
    if (stop_end > end || (stop_end == end && at >= begin)) continue;
    begin = at;
    end = stop_end;
    found_ = stop;
  }
  const std::size_t n_free = found_ ? begin : pending_.size() - held_bytes();
  std::string out = pending_.substr(0, n_free);
  pending_.erase(0, found_ ? pending_.size() : n_free);
  return out;
}

std::string StopScanner::finish() { return std::exchange(pending_, {}); }

/// The longest end of the text that is the beginning of a stop string.
std::size_t StopScanner::held_bytes() const noexcept {
  const std::string_view text = pending_;
  std::size_t held = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > held; --n) {
      if (text.substr(text.size() - n) == std::string_view(stop).substr(0, n)) held = n;
    }
  }
  return held;
}

}  // namespace volvelle
