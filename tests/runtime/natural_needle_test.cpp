// Needles in a book: where facts stand, how answers are read, and that recall on a trained model
// comes from the haystack: the same questions without it, or behind a window that dropped the fact,
// are not answered.
//
// One trained model's recall is no law, so only this is required of SmolLM2: of 4 facts next to the
// question at least 3 are found by a full memory, none without the haystack (a guess is right one
// time in 90,000).
#include "volvelle/eval/natural_needle.hpp"

#include <algorithm>
#include <set>

#include "eval/book_haystack.hpp"
#include "runtime/support.hpp"

namespace volvelle {
namespace {

const Model& smol() {
  static const Model model = test::load_model(test::kSmolQ41);
  return model;
}

const std::string& book() {
  static const std::string text =
      test::require(read_text_file(test::require(find_input("emma.txt", "texts"))))
          .substr(50000, 60000);
  return text;
}

const BookLibrary& library() {
  static const BookLibrary made = test::require(BookLibrary::create(smol(), book(), true));
  return made;
}

NaturalNeedleOptions options(std::int64_t tokens, std::int64_t chunk) {
  NaturalNeedleOptions result;
  result.tokens = tokens;
  result.chunk = chunk;
  return result;
}

std::string text_of(std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens) text += smol().tokenizer().piece(token, true);
  return text;
}

TEST(BookHaystack, FactsStandWhollyInTheirChunksBehindSentences) {
  const std::vector<std::int64_t> distances = {1, 3, 8};
  for (std::int64_t trial = 0; trial < 12; ++trial) {
    const auto made = library().make(options(1024, 128), trial, distances);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_EQ(made->tokens.size(), 1024u);
    ASSERT_TRUE(
        std::equal(library().opening().begin(), library().opening().end(), made->tokens.begin()));
    ASSERT_EQ(made->needles.size(), 3u);
    std::set<std::int64_t> seen;
    for (const BookHaystack::Needle& needle : made->needles) {
      seen.insert(needle.distance);
      const std::int64_t begin = (8 - needle.distance) * 128;
      const std::string chunk =
          text_of(std::span(made->tokens).subspan(static_cast<std::size_t>(begin), 128));
      const std::size_t at = chunk.find(needle.fact.sentence);
      ASSERT_NE(at, std::string::npos) << chunk;
      const std::size_t before = chunk.find_last_not_of(" \n\"'", at - 1);
      EXPECT_TRUE(at < 2 || std::string(".!?").find(chunk[before]) != std::string::npos) << chunk;
      EXPECT_EQ(needle.fact.value.size(), 5u);
      EXPECT_NE(needle.fact.sentence.find(needle.fact.value), std::string::npos);
      EXPECT_EQ(needle.fact.question.find(needle.fact.value), std::string::npos);
      const std::string asked = text_of(needle.question);
      EXPECT_NE(asked.find(needle.fact.question), std::string::npos) << asked;
      EXPECT_TRUE(asked.ends_with("<|im_start|>assistant\n")) << asked;
    }
    EXPECT_EQ(seen, std::set<std::int64_t>(distances.begin(), distances.end()));
  }
}

TEST(BookHaystack, DependsOnSeedTrialAndDistanceOnly) {
  NaturalNeedleOptions wanted = options(512, 128);
  const auto tokens = [&](std::int64_t trial, std::int64_t distance) {
    return test::require(library().make(wanted, trial, {distance})).tokens;
  };
  const auto first = tokens(0, 2);
  EXPECT_EQ(tokens(0, 2), first);
  EXPECT_NE(tokens(1, 2), first);
  EXPECT_NE(tokens(0, 3), first);
  wanted.seed = 2;
  EXPECT_NE(tokens(0, 2), first);
}

TEST(BookHaystack, PhrasingsTakeTurnsAndRawModelsCompleteTheSentence) {
  std::set<std::string> beginnings;
  for (std::int64_t trial = 0; trial < 4; ++trial) {
    const auto made = test::require(library().make(options(512, 128), trial, {1}));
    beginnings.insert(made.needles[0].fact.question.substr(0, 18));
  }
  EXPECT_EQ(beginnings.size(), 4u);
  const BookLibrary raw = test::require(BookLibrary::create(smol(), book(), false));
  const auto made = test::require(raw.make(options(512, 128), 0, {1}));
  const BookHaystack::Needle& needle = made.needles[0];
  EXPECT_TRUE(needle.fact.sentence.starts_with(needle.fact.question));
  EXPECT_EQ(text_of(needle.question), "\n\n" + needle.fact.question);
}

TEST(BookHaystack, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(library().make(options(64, 8), 0, {2}).ok());         // a fact has more tokens
  EXPECT_FALSE(library().make(options(1 << 20, 256), 0, {1}).ok());  // the book is shorter
  EXPECT_FALSE(library().make(options(4096, 256), 0, std::vector<std::int64_t>(50, 1)).ok());
}

TEST(NaturalNeedle, TheFirstNumberOfFiveDigitsIsTheAnswer) {
  EXPECT_EQ(first_five_digits("It is 48213."), "48213");
  EXPECT_EQ(first_five_digits("48213"), "48213");
  EXPECT_EQ(first_five_digits("1817, 123456, 7 and 90210 or 11111"), "90210");
  EXPECT_EQ(first_five_digits("4821 and 482133"), std::nullopt);
  EXPECT_EQ(first_five_digits(""), std::nullopt);
}

TEST(NaturalNeedle, SeveralNeedlesAreSpacedEvenly) {
  NaturalNeedleOptions wanted = options(1024, 128);
  wanted.needles = 4;
  EXPECT_EQ(needle_distances(wanted), (std::vector<std::int64_t>{1, 3, 5, 7}));
  wanted.needles = 8;
  EXPECT_EQ(needle_distances(wanted), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

std::int64_t correct(const NeedleResult& result) {
  std::int64_t sum = 0;
  for (const NeedleRow& row : result.rows) sum += row.correct;
  return sum;
}

TEST(NaturalNeedle, RecallComesFromTheHaystack) {
  NaturalNeedleOptions wanted = options(512, 128);
  wanted.distances = {1};
  wanted.n_predict = 24;
  Session session = test::open_session(smol(), 128);
  const auto run = [&](const std::string& spec) {
    return test::require(
        run_natural_needle(session, test::require(parse_memory_spec(spec)), book(), wanted, {}));
  };
  const NeedleResult full = run("full");
  ASSERT_EQ(full.rows.size(), 1u);
  EXPECT_EQ(full.rows[0].trials, 4);
  EXPECT_GE(full.rows[0].correct, 3);
  EXPECT_EQ(full.chunks.size(), 4u * 4);
  EXPECT_EQ(correct(run("sink(4)+window(32,block=1)")), 0);
  wanted.isolated = true;
  const NeedleResult alone = run("full");
  EXPECT_EQ(correct(alone), 0);
  EXPECT_TRUE(alone.chunks.empty());
}

TEST(NaturalNeedle, RefusesOptionsThatMakeNoSense) {
  Session session = test::open_session(smol(), 128);
  const auto code = [&](const auto& change) {
    NaturalNeedleOptions wanted = options(512, 128);
    wanted.distances = {1};
    change(wanted);
    const auto result = run_natural_needle(session, MemorySpec::full_memory(), book(), wanted, {});
    return result.ok() ? std::optional<ErrorCode>() : result.error().code;
  };
  using O = NaturalNeedleOptions;
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  EXPECT_EQ(code([](O& o) { o.tokens = 500; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.chunk = 0; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.distances = {5}; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.distances = {}; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.needles = 2; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.needles = 5, o.distances = {}; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.trials = 0; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.n_predict = 0; }), kInvalid);
  EXPECT_EQ(code([](O& o) { o.tokens = 8192; }), ErrorCode::kContextExceeded);
}

}  // namespace
}  // namespace volvelle
