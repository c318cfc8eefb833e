// Needle in a haystack: the haystack's rules, and recall through the whole stack with the wired
// retriever, whose recall is 100 % by construction at every distance. So nothing here has a
// tolerance: one wrong answer is a fault of tokenizer, engine hook, positions, store or attention.
// That the test can fail is shown by memories and haystacks that lack the fact.
#include "volvelle/eval/needle.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "eval/haystack.hpp"
#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"

namespace volvelle {
namespace {

/// The wired retriever, loaded once.
const Model& retriever() {
  static const Model model = test::load_model(test::kWired);
  return model;
}

/// One thread: the model is tiny, and threads that wait for each other cost more than they bring.
Session one_thread(const Model& model, KvTypes kv = {}) {
  SessionOptions options;
  options.n_threads = 1;
  options.n_ubatch = 128;
  options.kv = kv;
  return test::require(Session::create(model, options));
}

/// Words as ids without a model: begin 0, none 1, fillers from 100, keys from 200, values from 300.
RetrieverWords numbered_words() {
  RetrieverWords words{.begin = 0, .none = 1, .fillers = {}, .keys = {}, .values = {}};
  for (int i = 0; i < 32; ++i) words.fillers.push_back(100 + i);
  for (int i = 0; i < 64; ++i) words.keys.push_back(200 + i);
  for (int i = 0; i < 64; ++i) words.values.push_back(300 + i);
  return words;
}
bool is_key(TokenId token) { return token >= 200 && token < 264; }
bool is_value(TokenId token) { return token >= 300 && token < 364; }

NeedleOptions options(std::int64_t tokens, std::int64_t chunk, std::vector<std::int64_t> distances,
                      std::int64_t trials = 1) {
  NeedleOptions result;
  result.tokens = tokens;
  result.chunk = chunk;
  result.distances = std::move(distances);
  result.trials = trials;
  return result;
}

TEST(Haystack, KeepsTheRetrieversRules) {
  NeedleOptions wanted = options(512, 32, {1, 4, 4, 15, 16});
  wanted.absent = 3;
  for (std::int64_t trial = 0; trial < 50; ++trial) {
    const auto made = make_haystack(numbered_words(), wanted, trial);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const std::vector<TokenId>& tokens = made->tokens;
    ASSERT_EQ(tokens.size(), 512u);
    EXPECT_EQ(tokens[0], 0);
    std::map<TokenId, std::size_t> place;  // of keys and values
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!is_key(tokens[i]) && !is_value(tokens[i])) continue;
      EXPECT_TRUE(place.emplace(tokens[i], i).second) << "twice: " << tokens[i];
      if (is_key(tokens[i])) {
        ASSERT_TRUE(i + 1 < tokens.size() && is_value(tokens[i + 1]));
      } else {
        ASSERT_TRUE(is_key(tokens[i - 1]));
      }
    }
    EXPECT_EQ(place.size(), 2u * (5 + kDistractors));
    ASSERT_EQ(made->needles.size(), 5u);
    for (std::size_t i = 0; i < 5; ++i) {
      const std::size_t at = place.at(made->needles[i].key);
      EXPECT_EQ(static_cast<std::int64_t>(at / 32), 16 - wanted.distances[i]);
      EXPECT_EQ(static_cast<std::int64_t>((at + 1) / 32), 16 - wanted.distances[i]);
      EXPECT_EQ(tokens[at + 1], made->needles[i].value);
    }
    ASSERT_EQ(made->absent_keys.size(), 3u);
    for (const TokenId key : made->absent_keys) EXPECT_FALSE(place.contains(key));
  }
}

TEST(Haystack, IsTheSameForTheSameSeedAndTrialOnly) {
  NeedleOptions wanted = options(512, 32, {1, 16});
  const auto first = make_haystack(numbered_words(), wanted, 0).value();
  EXPECT_EQ(make_haystack(numbered_words(), wanted, 0).value().tokens, first.tokens);
  EXPECT_NE(make_haystack(numbered_words(), wanted, 1).value().tokens, first.tokens);
  wanted.seed = 2;
  EXPECT_NE(make_haystack(numbered_words(), wanted, 0).value().tokens, first.tokens);
}

TEST(Haystack, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(
      make_haystack(numbered_words(), options(512, 2, {256}), 0).ok());  // behind <s>: one place
  EXPECT_FALSE(
      make_haystack(numbered_words(), options(16, 16, {1}), 0).ok());  // 9 facts in 15 places
  const std::vector<std::int64_t> many(57, 1);
  EXPECT_FALSE(make_haystack(numbered_words(), options(4096, 4096, many), 0).ok());
}

std::vector<NeedleRow> run(const std::string& memory, const NeedleOptions& wanted) {
  const MemorySpec spec = test::require(parse_memory_spec(memory));
  Session session = one_thread(retriever(), test::require(kv_types(spec)));
  return test::require(run_needle(retriever(), session, spec, wanted, {})).rows;
}

void expect_all_correct(const std::vector<NeedleRow>& rows, const NeedleOptions& wanted) {
  ASSERT_EQ(rows.size(), wanted.distances.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].distance, wanted.distances[i]);
    EXPECT_EQ(rows[i].trials, wanted.trials);
    EXPECT_EQ(rows[i].correct, wanted.trials) << "distance " << rows[i].distance;
    EXPECT_EQ(rows[i].none, 0) << "distance " << rows[i].distance;
  }
}

TEST(Needle, FullMemoryFindsEveryFactAtEveryDistance) {
  for (const auto& wanted :
       {options(2048, 32, {1, 16, 32, 63, 64}, 3), options(2048, 128, {1, 4, 8, 15, 16}, 2),
        options(8192, 128, {1, 16, 32, 63, 64}, 1)}) {
    expect_all_correct(run("full", wanted), wanted);
  }
}

TEST(Needle, ChunksNeedNotFitTheUbatch) {
  const auto wanted = options(2000, 200, {1, 2, 5, 9, 10}, 1);  // ubatches of 128 and 72
  expect_all_correct(run("full", wanted), wanted);
}

TEST(Needle, StoredInFullPrecision) {
  const auto wanted = options(2048, 128, {1, 4, 8, 15, 16}, 1);
  expect_all_correct(run("full+kv(k=f32,v=f32)", wanted), wanted);
}

TEST(Needle, WindowForgetsWhatLiesBehindIt) {
  // The question at 2048 sees rows from 64 * floor((2049 - 512) / 64) = 1536 on: chunks 48 to 63.
  const auto inside = options(2048, 32, {1, 8, 15, 16}, 2);
  expect_all_correct(run("sink(4)+window(512)", inside), inside);
  const auto outside = options(2048, 32, {17, 32, 48, 63}, 2);
  const auto rows = run("sink(4)+window(512)", outside);
  ASSERT_EQ(rows.size(), 4u);
  for (const NeedleRow& row : rows) {
    EXPECT_EQ(row.correct, 0) << "distance " << row.distance;
    EXPECT_EQ(row.none, row.trials) << "distance " << row.distance;
  }
}

TEST(Needle, AbsentKeysAreAnsweredNone) {
  NeedleOptions wanted = options(1024, 64, {1, 8}, 2);
  wanted.absent = 5;
  const auto rows = run("full", wanted);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].distance, 0);
  EXPECT_EQ(rows[2].trials, 10);
  EXPECT_EQ(rows[2].correct, 10);
  EXPECT_EQ(rows[2].none, 10);
}

/// The model's answer to `key` after reading `tokens`.
TokenId answer_to(Session& session, std::span<const TokenId> tokens, TokenId key) {
  auto memory = session.begin(MemorySpec::full_memory()).value();
  EXPECT_TRUE(session.step(memory, tokens, Logits::kNone).ok());
  EXPECT_TRUE(session.step(memory, std::span(&key, 1), Logits::kLast).ok());
  return static_cast<TokenId>(argmax(session.logits(0)));
}

TEST(Needle, TakingTheFactOutOfTheHaystackTakesTheAnswerAway) {
  const auto words = find_retriever_words(retriever());
  ASSERT_TRUE(words.ok()) << words.error().message;
  const auto haystack = make_haystack(*words, options(1024, 64, {3, 12}), 7).value();
  Session session = one_thread(retriever());
  const Fact removed = haystack.needles[0];
  const Fact kept = haystack.needles[1];
  EXPECT_EQ(answer_to(session, haystack.tokens, removed.key), removed.value);

  std::vector<TokenId> tokens = haystack.tokens;
  const auto at = std::find(tokens.begin(), tokens.end(), removed.key);
  at[0] = at[1] = words->fillers[3];
  EXPECT_EQ(answer_to(session, tokens, removed.key), words->none);
  EXPECT_EQ(answer_to(session, tokens, kept.key), kept.value);

  // Another value in the same place is another answer: it is read, not guessed.
  at[0] = removed.key;
  at[1] = kept.value;
  EXPECT_EQ(answer_to(session, tokens, removed.key), kept.value);
}

TEST(Needle, AloneTheQuestionsAreAnsweredNone) {
  NeedleOptions wanted = options(1024, 64, {1, 8}, 2);
  wanted.isolated = true;
  Session session = one_thread(retriever());
  const auto found =
      test::require(run_needle(retriever(), session, MemorySpec::full_memory(), wanted, {}));
  ASSERT_EQ(found.rows.size(), 2u);
  EXPECT_TRUE(found.chunks.empty());
  for (const NeedleRow& row : found.rows) EXPECT_EQ(row.none, 2);
}

TEST(Needle, StorageNoiseOfEightBitsKeepsRecall) {
  // q8_0 is the int8 round trip of KV-Fold's storage noise, once for every row that is stored.
  const auto wanted = options(2048, 128, {1, 8, 16}, 1);
  for (const std::string type : {"f32", "f16", "bf16", "q8_0"}) {
    SCOPED_TRACE(type);
    expect_all_correct(run("full+kv(k=" + type + ",v=" + type + ")", wanted), wanted);
  }
}

TEST(Needle, StorageNoiseOfFourBitsIsSeen) {
  // q4_0 turns one of 1 and -1 into 0.875, and a value wins only above 0.875: the retriever must
  // then say that it found nothing, never a wrong value.
  const auto wanted = options(2048, 128, {1, 8, 16}, 1);
  for (const NeedleRow& row : run("full+kv(k=q4_0,v=q4_0)", wanted)) {
    EXPECT_EQ(row.correct + row.none, row.trials) << "distance " << row.distance;
  }
  expect_all_correct(run("full+kv(k=q4_0,v=f16)", wanted), wanted);  // keys alone: no threshold
}

/// Sets the key rows of one position to zero in every layer and head, as a fault of storage would.
void zero_key_rows(const ContextMemory& memory, std::int64_t position) {
  const StoreLayout& layout = memory.layout();
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    const auto bytes = row_bytes(layout.k_type, layout.layers[l].head_dim_k);
    for (const KeyValueSegment& s : memory.segments(LayerIndex(static_cast<std::int64_t>(l)))) {
      if (position < s.first_row || position >= s.first_row + s.n_rows) continue;
      for (int h = 0; h < layout.layers[l].n_kv_heads; ++h) {
        auto* const row = const_cast<std::byte*>(s.k) +
                          static_cast<std::size_t>(h) * s.k_head_stride +
                          static_cast<std::size_t>(position - s.first_row) * bytes;
        std::fill_n(row, bytes, std::byte{0});
      }
    }
  }
}

TEST(Needle, ZeroingOneKeyRowOfTheFactTakesTheAnswerAway) {
  const auto words = test::require(find_retriever_words(retriever()));
  const Haystack haystack = test::require(make_haystack(words, options(2048, 64, {5, 20}), 3));
  Session session = one_thread(retriever());
  ContextMemory memory = test::require(session.begin(MemorySpec::full_memory()));
  test::require(session.step(memory, haystack.tokens, Logits::kNone));
  const auto answer = [&](const Fact& fact) {
    ContextMemory branch = memory.clone();
    test::require(session.step(branch, std::span(&fact.key, 1), Logits::kLast));
    return static_cast<TokenId>(argmax(session.logits(0)));
  };
  EXPECT_EQ(answer(haystack.needles[0]), haystack.needles[0].value);
  const auto at =
      std::find(haystack.tokens.begin(), haystack.tokens.end(), haystack.needles[0].value);
  zero_key_rows(memory, at - haystack.tokens.begin());
  EXPECT_EQ(answer(haystack.needles[0]), words.none);
  EXPECT_EQ(answer(haystack.needles[1]), haystack.needles[1].value);
}

TEST(Needle, FindsTheRetrieversWordsByTheirText) {
  const auto words = find_retriever_words(retriever());
  ASSERT_TRUE(words.ok()) << words.error().message;
  const auto text = retriever().tokenizer().tokenize("f00 f31 k17 v42 none", {.add_special = true});
  ASSERT_TRUE(text.ok()) << text.error().message;
  const std::vector<TokenId> expected = {words->begin,    words->fillers[0], words->fillers[31],
                                         words->keys[17], words->values[42], words->none};
  EXPECT_EQ(text->tokens, expected);
}

TEST(Needle, OtherModelsAreRefusedByName) {
  const Model model = test::load_model(test::kSmolQ41);
  Session session = one_thread(model);
  const auto rows =
      run_needle(model, session, MemorySpec::full_memory(), options(512, 32, {1}), {});
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(rows.error().message.find(model.info().name), std::string::npos)
      << rows.error().message;
}

TEST(Needle, RefusesOptionsThatMakeNoSense) {
  Session session = one_thread(retriever());
  const auto code = [&](const NeedleOptions& wanted) {
    const auto rows = run_needle(retriever(), session, MemorySpec::full_memory(), wanted, {});
    return rows.ok() ? std::optional<ErrorCode>() : rows.error().code;
  };
  EXPECT_EQ(code(options(1000, 32, {1})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(1024, 0, {1})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(1024, 32, {0})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(1024, 32, {33})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(1024, 32, {})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(1024, 32, {1}, 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(1 << 20, 256, {1})), ErrorCode::kContextExceeded);
}

}  // namespace
}  // namespace volvelle
