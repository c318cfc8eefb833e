// Evidence: the collector against the formula worked out in plain loops over positions, and
// passages and sentence borders on texts whose right answer is plain to see.
#include "volvelle/memory/evidence.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "memory/sentences.hpp"
#include "volvelle/attention/weights.hpp"

namespace volvelle {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 8;

/// A memory of random rows and queries that look at it.
class Scene {
 public:
  Scene(const std::string& spec, std::int64_t n_tokens, std::int64_t window = 0)
      : memory_(ContextMemory::create(layout(window), parse_memory_spec(spec).value()).value()),
        second_is_narrow_(window > 0) {
    feed(n_tokens);
  }

  ContextMemory& memory() { return memory_; }

  /// Shows the queries of `n` more tokens to `collector`, layer by layer, as a session does.
  void observe(EvidenceCollector& collector, std::int64_t n) {
    ASSERT_TRUE(memory_.begin(std::vector<TokenId>(static_cast<std::size_t>(n))).ok());
    write(n);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const std::vector<float> q = random_row(n * kHeads * kDim, 3.0f);
      const AttendTask t = task(LayerIndex(layer), q);
      collector.observe(LayerIndex(layer), t);
      if (layer == 0 || !second_is_narrow_) expect(LayerIndex(layer), t);
    }
    memory_.commit();
  }

  /// What the formula gives for document tokens [begin, end): skip and neighbourhood as given.
  std::vector<double> expected(std::int64_t begin, std::int64_t end,
                               EvidenceOptions options) const {
    std::vector<double> scores(static_cast<std::size_t>(end - begin));
    for (const auto& [query, weights] : reads_) {
      std::map<std::int64_t, double> far;
      double mass = 0, squares = 0;
      for (const auto& [position, w] : weights) {
        if (position < begin || position >= end || position < options.skip_first) continue;
        if (query - position < options.neighbourhood) continue;
        far[position] = w, mass += w, squares += w * w;
      }
      for (const auto& [position, w] : far) {
        scores[static_cast<std::size_t>(position - begin)] +=
            w * std::pow(squares / mass / mass, 2);
      }
    }
    return scores;
  }

  void feed(std::int64_t n) {
    if (n == 0) return;
    ASSERT_TRUE(memory_.begin(std::vector<TokenId>(static_cast<std::size_t>(n))).ok());
    write(n);
    memory_.commit();
  }

 private:
  static StoreLayout layout(std::int64_t window) {
    StoreLayout layout;
    layout.layers = {{kKvHeads, kDim, kDim}, {kKvHeads, kDim, kDim, window}};
    return layout;
  }
  std::vector<float> random_row(std::int64_t n, float size) {
    std::vector<float> row(static_cast<std::size_t>(n));
    for (float& x : row) x = size * normal_(random_);
    return row;
  }
  void write(std::int64_t n) {
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      for (std::int64_t i = 0; i < n; ++i) {
        memory_.write_k(LayerIndex(layer), i, random_row(kKvHeads * kDim, 1).data());
        memory_.write_v(LayerIndex(layer), i, random_row(kKvHeads * kDim, 1).data());
      }
    }
  }
  AttendTask task(LayerIndex layer, const std::vector<float>& q) const {
    AttendTask t;
    t.shape = {.n_heads = kHeads,
               .n_kv_heads = kKvHeads,
               .head_dim_k = kDim,
               .head_dim_v = kDim,
               .scale = 0.5f};
    t.segments = memory_.segments(layer);
    t.visible = memory_.visible(layer);
    t.q = q.data();
    t.q_head_stride = kDim;
    t.q_token_stride = kHeads * kDim;
    return t;
  }
  /// Keeps the weights of each query by position.
  void expect(LayerIndex layer, const AttendTask& t) {
    for (std::int64_t token = 0; token < t.n_tokens(); ++token) {
      const VisibleRows& seen = t.visible[static_cast<std::size_t>(token)];
      for (int head = 0; head < kHeads; ++head) {
        std::vector<float> weights(static_cast<std::size_t>(n_visible(seen)));
        attention_weights(t, token, head, weights);
        std::map<std::int64_t, double> by_position;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const std::int64_t row = visible_row(seen, static_cast<std::int64_t>(i));
          const auto& positions = memory_.group_of(layer).store().positions();
          const std::int64_t pending = row - std::ssize(positions);
          by_position[pending >= 0 ? memory_.length() + pending
                                   : positions[static_cast<std::size_t>(row)].value()] = weights[i];
        }
        reads_.emplace_back(memory_.length() + token, std::move(by_position));
      }
    }
  }

  ContextMemory memory_;
  bool second_is_narrow_ = false;  // layer 1 sees less than layer 0, so it is not asked
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::vector<std::pair<std::int64_t, std::map<std::int64_t, double>>> reads_;
};

void expect_scores(const EvidenceCollector& collector, const std::vector<double>& expected) {
  ASSERT_TRUE(collector.status().ok());
  ASSERT_EQ(collector.scores().size(), expected.size());
  double total = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // Sums in double, but in another order.
    EXPECT_NEAR(collector.scores()[i], expected[i], 1e-12) << "token " << i;
    total += expected[i];
  }
  EXPECT_GT(total, 0.001);
}

TEST(EvidenceCollector, FollowsItsFormula) {
  for (const std::string spec : {"full", "sink(4)+window(64)", "sink(8)+window(100,block=1)"}) {
    for (const std::int64_t window : {0, 50}) {
      Scene scene(spec, 300, window);
      const EvidenceOptions options{.skip_first = 6, .neighbourhood = 20};
      auto collector = EvidenceCollector::create(scene.memory(), 2, 290, options);
      ASSERT_TRUE(collector.ok()) << collector.error().message;
      scene.observe(*collector, 7);
      scene.observe(*collector, 1);
      scene.observe(*collector, 1);
      expect_scores(*collector, scene.expected(2, 290, options));
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(collector->scores()[i], 0) << spec;
    }
  }
}

TEST(EvidenceCollector, NeighbourhoodMovesWithTheQuery) {
  Scene scene("full", 40);
  const EvidenceOptions options{.skip_first = 0, .neighbourhood = 16};
  auto collector = EvidenceCollector::create(scene.memory(), 0, 40, options).value();
  scene.observe(collector, 10);
  EXPECT_EQ(collector.scores()[34], 0);  // the last query stands at 49
  EXPECT_GT(collector.scores()[33], 0);
  scene.observe(collector, 10);
  EXPECT_GT(collector.scores()[39], 0);
}

TEST(EvidenceCollector, KnowsPositionsOfARestoredMemory) {
  Scene scene("sink(4)+window(64)", 3000);
  const ContextMemory& memory = scene.memory();
  const RowPositions kept = memory.positions_to_keep();
  std::vector<SavedRows> saved;
  for (std::size_t g = 0; g < kept.size(); ++g) {
    const auto layout = memory.grouping().layout_of(memory.layout(), static_cast<int>(g));
    saved.push_back({allocate_row_block(layout, std::ssize(kept[g])).value(), kept[g]});
  }
  Scene restored("sink(4)+window(64)", 0);
  restored.memory() =
      ContextMemory::restore(memory.layout(), memory.spec(), memory.tokens(), saved).value();
  auto collector = EvidenceCollector::create(restored.memory(), 0, 3000).value();
  restored.observe(collector, 30);
  expect_scores(collector, restored.expected(0, 3000, {}));
}

TEST(EvidenceCollector, DamagedRowsAddNothing) {
  Scene scene("full", 50);
  auto collector = EvidenceCollector::create(scene.memory(), 0, 50).value();
  const std::vector<float> q(kHeads * kDim, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(scene.memory().begin(std::vector<TokenId>{1}).ok());
  AttendTask task;
  task.shape = {.n_heads = kHeads, .n_kv_heads = kKvHeads, .head_dim_k = kDim, .head_dim_v = kDim};
  task.segments = scene.memory().segments(LayerIndex(0));
  task.visible = scene.memory().visible(LayerIndex(0));
  task.q = q.data();
  task.q_head_stride = kDim;
  collector.observe(LayerIndex(0), task);
  for (const double score : collector.scores()) EXPECT_EQ(score, 0);
}

TEST(EvidenceCollector, RefusesWhatIsNotThere) {
  Scene scene("full", 50);
  EXPECT_FALSE(EvidenceCollector::create(scene.memory(), 0, 51).ok());
  EXPECT_FALSE(EvidenceCollector::create(scene.memory(), -1, 5).ok());
  EXPECT_FALSE(EvidenceCollector::create(scene.memory(), 6, 5).ok());
  auto collector = EvidenceCollector::create(scene.memory(), 0, 50).value();
  collector.observe(LayerIndex(2), {});
  EXPECT_FALSE(collector.status().ok());
}

constexpr std::string_view kText =
    "Mr. Hill lives here. The key is under the mat!  Nobody asked. \"Was it so?\" he said to "
    "J. Smith.\n\nA new part\nwith 1.5 lines (and more.) The end";

std::string sentence_at(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  const std::size_t begin = sentence_begin(text, at);
  return std::string(text.substr(begin, sentence_end(text, at) - begin));
}

TEST(Sentences, OfPlainText) {
  EXPECT_EQ(sentence_at(kText, "Mr."), "Mr. Hill lives here.");
  EXPECT_EQ(sentence_at(kText, "here"), "Mr. Hill lives here.");
  EXPECT_EQ(sentence_at(kText, "under"), "The key is under the mat!");
  EXPECT_EQ(sentence_at(kText, "Nobody"), "Nobody asked.");
  EXPECT_EQ(sentence_at(kText, "said"), "\"Was it so?\" he said to J. Smith.");
  EXPECT_EQ(sentence_at(kText, "1.5"), "A new part\nwith 1.5 lines (and more.)");
  EXPECT_EQ(sentence_at(kText, "end"), "The end");
}

TEST(Sentences, OfChinese) {
  const std::string text = "\u5929\u4E0B\u3002\u5730\u4E0A\uFF1F\u4EBA";
  EXPECT_EQ(sentence_at(text, "\u5730"), "\u5730\u4E0A\uFF1F");
  EXPECT_EQ(sentence_at(text, "\u4E0A"), "\u5730\u4E0A\uFF1F");
  EXPECT_EQ(sentence_at(text, "\u4EBA"), "\u4EBA");
}

TEST(Sentences, WithoutBordersTheyAreCutAtWordsOrCharacters) {
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "word" + std::to_string(i) + " ";
  const std::size_t at = words.find("word500");
  const std::size_t begin = sentence_begin(words, at), end = sentence_end(words, at);
  EXPECT_GE(begin, at - kMarginBytes);
  EXPECT_LE(end, at + kMarginBytes);
  EXPECT_LT(begin, at - kMarginBytes + 10);
  EXPECT_GT(end, at + kMarginBytes - 10);
  EXPECT_EQ(words[begin - 1], ' ');
  EXPECT_EQ(words[end], ' ');

  std::string umlauts;
  for (int i = 0; i < 2000; ++i) umlauts += "\u00E4";  // two bytes each
  for (const std::size_t byte : {1999u, 2000u}) {
    EXPECT_EQ(sentence_begin(umlauts, byte) % 2, 0u);
    EXPECT_EQ(sentence_end(umlauts, byte) % 2, 0u);
    EXPECT_LE(sentence_begin(umlauts, byte), byte);
    EXPECT_GT(sentence_end(umlauts, byte), byte);
  }
}

TEST(Sentences, EveryPlaceLiesInItsSentence) {
  std::mt19937 random(3);
  const std::string_view alphabet = "aB.! \n\"\xC3\xA4\xE3\x80\x82";
  for (int trial = 0; trial < 300; ++trial) {
    std::string text(1 + random() % 40, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    for (std::size_t at = 0; at < text.size(); ++at) {
      const std::size_t begin = sentence_begin(text, at), end = sentence_end(text, at);
      ASSERT_LE(begin, at) << text;
      ASSERT_LE(end, text.size()) << text;
      if (text[at] != ' ' && text[at] != '\n') {
        ASSERT_GT(end, at) << text;
      }
    }
  }
}

/// One token a word, with the space in front of it.
std::vector<ByteRange> word_ranges(std::string_view text) {
  std::vector<ByteRange> ranges;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin + 1), text.size());
    ranges.push_back({static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
    begin = end;
  }
  return ranges;
}

std::string text_of(std::string_view text, const Passage& p) {
  return std::string(text.substr(static_cast<std::size_t>(p.range.begin),
                                 static_cast<std::size_t>(p.range.end - p.range.begin)));
}

TEST(Passages, AreTheHeaviestSentences) {
  const std::string tail = " and some more words to make the sentence longer. ";
  const std::string text = "One two three" + tail + "Four five six" + tail + "Seven eight nine" +
                           tail + "Ten eleven twelve" + tail;
  const std::vector<ByteRange> ranges = word_ranges(text);
  const auto token_of = [&](std::string_view word) {
    const auto at = static_cast<std::int64_t>(text.find(word));
    return static_cast<std::size_t>(
        std::find_if(ranges.begin(), ranges.end(), [&](ByteRange r) { return at < r.end; }) -
        ranges.begin());
  };
  std::vector<double> scores(ranges.size(), 0.0);
  scores[token_of("five")] = 6;
  scores[token_of("eleven")] = 3;
  scores[token_of("One")] = 0.9;
  scores[token_of("six")] = 0.1;
  const auto passages = find_passages(scores, ranges, text, 5);
  ASSERT_EQ(passages.size(), 3u);
  const std::string rest = tail.substr(0, tail.size() - 1);
  EXPECT_EQ(text_of(text, passages[0]), "Four five six" + rest);
  EXPECT_NEAR(passages[0].weight, 0.61, 1e-12);
  EXPECT_EQ(text_of(text, passages[1]), "Ten eleven twelve" + rest);
  EXPECT_NEAR(passages[1].weight, 0.30, 1e-12);
  EXPECT_EQ(text_of(text, passages[2]), "One two three" + rest);
  EXPECT_EQ(find_passages(scores, ranges, text, 1).size(), 1u);
  EXPECT_TRUE(find_passages(scores, ranges, text, 0).empty());
}

TEST(Passages, NeitherOverlapNorLeaveTheText) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::string text;
    for (int i = 0; i < 120; ++i) {
      text += "w" + std::to_string(random() % 50) + (random() % 6 == 0 ? ". A" : "");
      text += random() % 9 == 0 ? "\n\n" : " ";
    }
    std::vector<ByteRange> ranges = word_ranges(text);
    std::vector<double> scores(ranges.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] = random() % 4 == 0 ? static_cast<double>(random() % 1000) : 0.0;
      if (random() % 20 == 0) ranges[i] = {-1, -1};
    }
    const auto passages = find_passages(scores, ranges, text, 60);
    double sum = 0;
    for (std::size_t i = 0; i < passages.size(); ++i) {
      const ByteRange& a = passages[i].range;
      ASSERT_LT(a.begin, a.end);
      ASSERT_LE(a.end, std::ssize(text));
      ASSERT_GT(passages[i].weight, 0);
      if (i > 0) {
        ASSERT_LE(passages[i].weight, passages[i - 1].weight);
      }
      for (std::size_t j = 0; j < i; ++j) {
        const ByteRange& b = passages[j].range;
        ASSERT_TRUE(a.end <= b.begin || b.end <= a.begin) << text;
      }
      sum += passages[i].weight;
    }
    ASSERT_LE(sum, 1 + 1e-9);
  }
}

TEST(Passages, DoNotReachAcrossOneAnother) {
  const std::string text = "Alpha beta gamma. Yes! Delta epsilon zeta.";
  const std::vector<double> scores = {0, 0, 6, 100, 5, 0, 0};
  const auto passages = find_passages(scores, word_ranges(text), text, 5);
  ASSERT_EQ(passages.size(), 3u);
  EXPECT_EQ(text_of(text, passages[0]), "Yes!");
  EXPECT_EQ(text_of(text, passages[1]), "Alpha beta gamma.");
  EXPECT_EQ(text_of(text, passages[2]), "Delta epsilon zeta.");
}

TEST(Passages, OfNothing) {
  EXPECT_TRUE(find_passages({}, {}, "", 3).empty());
  const std::vector<double> zero(2, 0.0), one(2, 1.0);
  const std::vector<ByteRange> nowhere(2), outside{{0, 99}, {5, 4}};
  EXPECT_TRUE(find_passages(zero, std::vector<ByteRange>{{0, 1}, {1, 2}}, "ab", 3).empty());
  EXPECT_TRUE(find_passages(one, nowhere, "ab", 3).empty());
  EXPECT_TRUE(find_passages(one, outside, "ab", 3).empty());
}

}  // namespace
}  // namespace volvelle
