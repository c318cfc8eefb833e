// Stop strings in text that arrives in pieces: what is found and what is let through must not
// depend on the pieces. The reference looks at every byte of the whole text.
#include "runtime/stop_scanner.hpp"

#include <gtest/gtest.h>

#include <random>

namespace volvelle::test {
namespace {

struct Found {
  std::string text;
  std::string stop;
  bool operator==(const Found&) const = default;
};

/// The definition, literally: the first byte at which some stop string is complete.
Found reference(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop) && stop.size() > longest.size()) longest = stop;
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), longest};
  }
  return {text, ""};
}

Found scan(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  StopScanner scanner(stops);
  Found found;
  for (const std::string& piece : pieces) found.text += scanner.push(piece);
  found.text += scanner.finish();
  found.stop = scanner.found().value_or("");
  return found;
}

TEST(StopScanner, FindsWhatIsCompleteFirstWhereverThePiecesEnd) {
  std::mt19937 random(7);
  const auto word = [&](std::size_t most) {
    std::string text;
    for (std::size_t n = 1 + random() % most; n > 0; --n) text += "ab"[random() % 2];
    return text;
  };
  int n_found = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<std::string> stops;
    for (std::size_t n = random() % 4; n > 0; --n) stops.push_back(word(5));
    std::vector<std::string> pieces;
    std::string text;
    for (std::size_t n = 1 + random() % 8; n > 0; --n) {
      pieces.push_back(random() % 5 == 0 ? "" : word(4));
      text += pieces.back();
    }
    const Found expected = reference(text, stops);
    ASSERT_EQ(scan(pieces, stops), expected) << text;
    n_found += !expected.stop.empty();
  }
  EXPECT_GT(n_found, 1000);
  EXPECT_LT(n_found, 2900);
}

TEST(StopScanner, HoldsBackOnlyWhatCanStillBecomeAStop) {
  const std::vector<std::string> stops{"User:", "\n\n"};
  StopScanner scanner(stops);
  EXPECT_EQ(scanner.push("one\n"), "one");
  EXPECT_EQ(scanner.push("Us"), "\n");
  EXPECT_EQ(scanner.push("U"), "Us");
  EXPECT_EQ(scanner.push("sers"), "Users");
  EXPECT_EQ(scanner.push(" \n"), " ");
  EXPECT_EQ(scanner.finish(), "\n");
  EXPECT_FALSE(scanner.found());
}

TEST(StopScanner, NothingComesAfterAStop) {
  const std::vector<std::string> stops{"END"};
  StopScanner scanner(stops);
  EXPECT_EQ(scanner.push("a EN"), "a ");
  EXPECT_EQ(scanner.push("D b"), "");
  EXPECT_EQ(scanner.push("more"), "");
  EXPECT_EQ(scanner.finish(), "");
  EXPECT_EQ(scanner.found(), "END");
}

TEST(StopScanner, RefusesStringsThatCanNotBeFound) {
  EXPECT_FALSE(StopScanner::check(std::vector<std::string>{"a", ""}).ok());
  EXPECT_FALSE(StopScanner::check(std::vector<std::string>{"caf\xE9"}).ok());
  EXPECT_TRUE(StopScanner::check(std::vector<std::string>{"caf\xC3\xA9", "\n"}).ok());
  EXPECT_TRUE(StopScanner::check({}).ok());
}

}  // namespace
}  // namespace volvelle::test
