// Finds stop strings in text that arrives in pieces.
//
//   stop = the string that is complete first; of several that end at the same byte, the longest
//
// So what is found, and the text before it, do not depend on where the pieces (tokens) end. Held
// back is only the longest end of the text that can still become a stop string. Cost per piece:
// (piece + longest stop) x number of stops.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "volvelle/base/result.hpp"

namespace volvelle {

class StopScanner {
 public:
  /// An empty string or one that is not UTF-8 could never be found in the way it was meant.
  static Status check(std::span<const std::string> stops);

  explicit StopScanner(std::span<const std::string> stops) : stops_(stops) {}
  /// The text that is now known to be no part of a stop string; nothing more comes after a stop.
  std::string push(std::string_view text);
  /// What was held back, at the end of the text.
  std::string finish();
  /// The stop string that was found.
  const std::optional<std::string>& found() const noexcept { return found_; }

 private:
  std::size_t held_bytes() const noexcept;

  std::span<const std::string> stops_;
  std::string pending_;
  std::optional<std::string> found_;
};

}  // namespace volvelle
