// Parts of error messages: whatever a text holds, one printable line comes out.
#include "io/message.hpp"

#include <gtest/gtest.h>

#include <random>

#include "unit/file_support.hpp"

namespace volvelle::io {
namespace {

using testing::is_printable_line;

TEST(Message, PrintableTextStaysAsItIs) {
  const std::string text = "tensor 'gr\xC3\xBC\xC3\x9F' \xF0\x9F\x98\x80 is \\xff";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(printable("a\n\xFF")), printable("a\n\xFF"));
}

TEST(Message, QuotedTextCanNotImitateAnEscape) {
  EXPECT_EQ(quoted("\xFF"), "'\\xff'");
  EXPECT_EQ(quoted("\\xff"), "'\\x5cxff'");
}

TEST(Message, LongTextsAreCutBetweenCharacters) {
  EXPECT_EQ(quoted("abcdef", 3), "'abc...'");
  EXPECT_EQ(quoted("ab\xC3\xBC"
                   "def",
                   3),
            "'ab\xC3\xBC...'");
  EXPECT_EQ(quoted("abc", 3), "'abc'");
  EXPECT_EQ(printable(std::string(3000, 'x')).size(), 2003u);
}

TEST(Message, AnyBytesBecomeOnePrintableLine) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bytes(1 + random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_TRUE(is_printable_line(printable(bytes)));
    EXPECT_TRUE(is_printable_line(quoted(bytes, 20)));
  }
}

}  // namespace
}  // namespace volvelle::io
