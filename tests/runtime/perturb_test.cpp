// Damage to memories: it is what it says it is, hits what it should, and no damage is none.
#include "eval/perturb.hpp"

#include <cmath>

#include "eval/band_damage.hpp"
#include "eval/memory_edit.hpp"
#include "index/stored_rows.hpp"
#include "runtime/support.hpp"
#include "volvelle/io/atomic_file.hpp"

namespace volvelle::test {
namespace {

std::shared_ptr<const ModelRotations> rotations_of(const Model& model) {
  return std::make_shared<ModelRotations>(require(model_rotations(model)));
}

TEST(BandDamage, SlowBandsAreThoseOfLowFrequency) {
  const auto rotations = rotations_of(load_model(kSmolQ41));
  const BandFrequencies& bands = rotations->groups[0].bands;
  EXPECT_EQ(chosen_bands(bands, "slow", 1), (std::vector<int>{31, 30, 29, 28}));
  EXPECT_EQ(chosen_bands(bands, "fast", 1), (std::vector<int>{0, 1, 2, 3}));
  const auto random = chosen_bands(bands, "random", 1);
  EXPECT_EQ(random.size(), 4U);
  EXPECT_EQ(random, chosen_bands(bands, "random", 1));
  EXPECT_NE(random, chosen_bands(bands, "random", 2));
}

TEST(BandDamage, HasTheSizeThatItSays) {
  const auto rotations = rotations_of(load_model(kSmolQ41));  // 64 dimensions, pairs (2 i, 2 i + 1)
  std::vector<float> keys(2 * 3 * 64);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = std::sin(static_cast<float>(i));
  const std::vector<float> before = keys;
  const EditableRows rows{
      CapturedRows::Kind::kKey, LayerIndex(3), Position(17), 2, 3, 64, keys.data(), 3 * 64};
  damage_bands(rotations, "slow", 0.4, 1)(rows);
  for (std::size_t head = 0; head < 6; ++head) {
    double norm = 0.0, change = 0.0;
    for (std::size_t i = 0; i < 64; ++i) {
      const double x = static_cast<double>(before[head * 64 + i]);
      const double d = static_cast<double>(keys[head * 64 + i]) - x;
      norm += x * x;
      change += d * d;
      if (i < 56) {
        EXPECT_EQ(d, 0.0);  // bands 28 to 31 are the last eight numbers
      }
    }
    EXPECT_NEAR(std::sqrt(change / norm), 0.4, 1e-5);
  }
  keys = before;
  damage_bands(rotations, "fast", 0.0, 1)(rows);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(keys[i], i < 8 ? 0.0f : before[i]);
}

// The same damage in chunks of any size, and none to values.
TEST(BandDamage, DoesNotDependOnChunks) {
  const RowEditor damage = damage_bands(rotations_of(load_model(kSmolQ41)), "random", 0.3, 1);
  std::vector<float> whole(6 * 64, 1.0f);
  std::vector<float> parts = whole, values = whole;
  const auto rows = [](std::vector<float>& data, std::int64_t first, std::int64_t n) {
    return EditableRows{CapturedRows::Kind::kKey,
                        LayerIndex(2),
                        Position(100 + first),
                        n,
                        1,
                        64,
                        data.data() + first * 64,
                        64};
  };
  damage(rows(whole, 0, 6));
  damage(rows(parts, 0, 2));
  damage(rows(parts, 2, 4));
  EXPECT_EQ(whole, parts);
  EXPECT_FALSE(std::equal(whole.begin(), whole.begin() + 64, whole.begin() + 64));
  EditableRows of_values = rows(values, 0, 6);
  of_values.kind = CapturedRows::Kind::kValue;
  damage(of_values);
  EXPECT_EQ(values, std::vector<float>(6 * 64, 1.0f));
}

// What is stored is what the editor made of it, and attention reads that.
TEST(BandDamage, ReachesTheMemory) {
  const Model model = load_model(kSmolQ41);
  SessionOptions options;
  options.n_threads = 2;
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 64);
  std::vector<std::vector<float>> logits;
  for (const bool damaged : {false, true}) {
    if (damaged) options.edit_rows = damage_bands(rotations_of(model), "slow", 0.0, 1);
    Session session = require(Session::create(model, options));
    ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
    require(session.step(memory, tokens, Logits::kLast));
    logits.push_back(copy(session.logits()));
    AttentionShape shape;
    shape.n_kv_heads = 3;
    shape.head_dim_k = shape.head_dim_v = 64;
    // Of every token, whichever thread stores it.
    std::int64_t n_zeros = 0;
    for (std::int64_t layer = 0; layer < 30; ++layer) {
      for (int head = 0; head < 3; ++head) {
        std::vector<float> keys(64 * 64);
        ASSERT_TRUE(StoredRows(shape, memory.segments(LayerIndex(layer)))
                        .load_keys(head, 0, 64, keys.data()));
        for (std::size_t i = 0; i < keys.size(); ++i) n_zeros += i % 64 >= 56 && keys[i] == 0.0f;
      }
    }
    if (damaged) {
      EXPECT_EQ(n_zeros, 30 * 3 * 64 * 8);
    } else {
      EXPECT_LT(n_zeros, 100);
    }
  }
  EXPECT_NE(logits[0], logits[1]);
}

TEST(MemoryEdit, WithoutAnEditItIsTheSameMemory) {
  const Model model = load_model(kSmolQ41);
  Session session = open_session(model, 512, true);
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 400);
  const auto text = std::span(tokens);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, text.first(390), Logits::kNone));
  ContextMemory same =
      require(edited_memory(memory, memory.spec(), [](const HeadRows&) -> Status { return {}; }));
  MemorySpec half;
  half.sink = 4;
  half.window = WindowTerm{100, 1};
  ContextMemory less =
      require(edited_memory(memory, half, [](const HeadRows&) -> Status { return {}; }));
  EXPECT_EQ(same.length(), 390);
  require(session.step(memory, text.last(10), Logits::kLast));
  const std::vector<float> expected = copy(session.logits());
  require(session.step(same, text.last(10), Logits::kLast));
  EXPECT_EQ(copy(session.logits()), expected);
  require(session.step(less, text.last(10), Logits::kLast));
  EXPECT_NE(copy(session.logits()), expected);
  EXPECT_LT(less.row_bytes_used(), same.row_bytes_used());
}

TEST(Perturb, TheWiredRetrieverLosesWhatItFindsBy) {
  const Model model = load_model(kWired);
  PerturbOptions options;
  options.tokens = 512;
  options.chunk = 64;
  options.trials = 1;
  options.sizes = {0.1};
  options.session.n_threads = 2;
  const auto rows = require(run_perturb(model, "", options, {}));
  ASSERT_EQ(rows.size(), 11U);
  EXPECT_EQ(rows[0].damage, "none");
  EXPECT_EQ(rows[0].retrieval, 1.0);
  EXPECT_EQ(rows[0].n_retrieval, 3);
  EXPECT_EQ(rows[0].n_choice, 0);
  // A fact in the first half of the haystack is gone with it.
  EXPECT_EQ(rows.back().what, "evict");
  EXPECT_LT(rows.back().retrieval, 1.0);
}

TEST(Perturb, DamageOfARealModelIsMeasured) {
  const Model model = load_model(kSmolQ41);
  PerturbOptions options;
  options.tokens = 256;
  options.continuation = 64;
  options.texts = 1;
  options.choices = 1;
  options.trials = 0;
  options.sizes = {};
  options.session.n_threads = 2;
  const std::string book =
      require(read_text_file(require(find_input("emma.txt", "texts")))).substr(0, 60000);
  const auto rows = require(run_perturb(model, book, options, {}));
  ASSERT_EQ(rows.size(), 8U);
  for (const PerturbRow& row : rows) {
    EXPECT_TRUE(std::isfinite(row.perplexity)) << row.damage << row.what;
    EXPECT_EQ(row.n_perplexity, 64);
    EXPECT_EQ(row.n_choice, 1);
    EXPECT_EQ(row.n_retrieval, 0);
  }
  EXPECT_GT(rows[1].perplexity, rows[0].perplexity);  // slow bands removed
  EXPECT_FALSE(run_perturb(model, "too short", options, {}).ok());
  options.tokens = 300;
  EXPECT_FALSE(run_perturb(model, book, options, {}).ok());
}

}  // namespace
}  // namespace volvelle::test
