// XXH3-128 against the published answers of its specification, and the incremental form against
// the whole one.
#include "volvelle/io/checksum.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "unit/file_support.hpp"

namespace volvelle {
namespace {

using testing::as_bytes;

TEST(Checksum, EmptyInputHasThePublishedValue) {
  // XXH3_128bits of nothing, seed 0, high half first.
  EXPECT_EQ(to_hex(checksum({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(to_hex(ChecksumStream().finish()), "99aa06d3014798d86001c324468d497f");
}

TEST(Checksum, KnownTextsHaveTheValuesOfTheReferenceProgram) {
  // Values of the xxHash reference implementation.
  EXPECT_EQ(to_hex(checksum(as_bytes("a"))), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(to_hex(checksum(as_bytes("abc"))), "06b05ab6733a618578af5f94892f3950");
}

TEST(Checksum, AnySplitGivesTheSameSum) {
  std::mt19937 rng(1);
  for (const std::size_t size : {1, 15, 16, 17, 128, 129, 240, 241, 1023, 5000}) {
    std::string text(size, '\0');
    for (char& c : text) c = static_cast<char>(rng());
    ChecksumStream stream;
    for (std::size_t at = 0; at < size;) {
      const std::size_t n = std::min<std::size_t>(size - at, rng() % 300);
      stream.update(std::string_view(text).substr(at, n));
      at += n;
    }
    EXPECT_EQ(stream.finish(), checksum(as_bytes(text))) << size;
  }
}

TEST(Checksum, EveryBitCounts) {
  std::set<Checksum> sums;
  std::string text(64, 'x');
  sums.insert(checksum(as_bytes(text)));
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    sums.insert(checksum(as_bytes(flipped)));
  }
  EXPECT_EQ(sums.size(), 1 + text.size() * 8);
}

}  // namespace
}  // namespace volvelle
