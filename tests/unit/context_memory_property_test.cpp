// 600 seeded random sequences of feed, rollback, clone, truncate, save-and-restore on memories of
// random specs, compared with a model that keeps a plain list of tokens and marks what may be
// dropped.
//
// What each query sees is compared as a set of positions with the definition, brute force over all
// positions, and every seen row is read back from the store. E(t) is computed by counting, not by
// the library.
#include <gtest/gtest.h>

#include <random>

#include "law/store_reader.hpp"
#include "volvelle/memory/context_memory.hpp"

namespace volvelle {
namespace {

using testing::holds_known;
using testing::small_layout;
using testing::write_known;

struct ModelToken {
  TokenId token = 0;
  std::uint64_t id = 0;  // of its row
  bool dropped = false;
};

struct Rule {
  bool full = true;
  std::int64_t sink = 0;
  std::int64_t window = 0;
  std::int64_t block = 1;

  std::int64_t begin(std::int64_t t) const {  // E(t)
    std::int64_t e = 0;
    while (e + block <= t + 1 - window) e += block;
    return std::max(e, sink);
  }
  bool sees(std::int64_t t, std::int64_t p) const {
    return p <= t && (full || p < sink || p >= begin(t));
  }
  MemorySpec spec() const {
    std::string text =
        full ? "full"
             : "window(" + std::to_string(window) + ",block=" + std::to_string(block) + ")";
    if (sink > 0) text += "+sink(" + std::to_string(sink) + ")";
    return *parse_memory_spec(text + "+kv(k=f16,v=f32)");
  }
};

struct Pair {
  ContextMemory memory;
  std::vector<ModelToken> model;
};

class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : random_(seed) {
    rule_.full = below(4) == 0;
    if (!rule_.full) {
      rule_.sink = static_cast<std::int64_t>(below(6));
      rule_.window = 1 + static_cast<std::int64_t>(below(80));
      rule_.block = 1 + static_cast<std::int64_t>(below(3) == 0 ? 0 : below(40));
    }
    pairs_.push_back({ContextMemory::create(small_layout(), rule_.spec()).value(), {}});
  }

  void step() {
    Pair& pair = pairs_[below(pairs_.size())];
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        feed(pair, true);
        break;
      case 3:
        feed(pair, false);
        break;
      case 4:
        if (pairs_.size() < 3) {
          Pair copy{pair.memory.clone(), pair.model};
          pairs_.push_back(std::move(copy));
        }
        break;
      case 5:
        truncate(pair);
        break;
      case 6:
        save_and_restore(pair);
        break;
      default:
        if (pairs_.size() > 1) pairs_.erase(pairs_.begin());
    }
  }

  void check_all() {
    for (Pair& pair : pairs_) {
      check_tokens(pair);
      feed(pair, false);  // looks at what the next queries see
    }
  }
  int n_refused() const { return n_refused_; }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  // Feeds some tokens and checks what they see while they are pending.
  void feed(Pair& pair, bool keep) {
    const std::size_t n = below(4) == 0 ? 1 + below(300) : 1 + below(5);
    std::vector<TokenId> tokens;
    std::vector<ModelToken> after = pair.model;
    for (std::size_t i = 0; i < n; ++i) {
      tokens.push_back(static_cast<TokenId>(below(1000)));
      after.push_back({tokens.back(), next_id_ + i});
    }
    ASSERT_TRUE(pair.memory.begin(tokens).ok());
    for (std::size_t i = 0; i < n; ++i) {
      write_known(pair.memory, static_cast<std::int64_t>(i), next_id_ + i);
    }
    next_id_ += n;
    for (std::size_t i = 0; i < n; i += 1 + n / 3) check_seen(pair, after, i);
    if (!keep) return pair.memory.rollback();
    pair.memory.commit();
    pair.model = std::move(after);
    drop(pair.model);
  }

  // After a commit, rows more than a block before the next query's window may be gone.
  void drop(std::vector<ModelToken>& model) const {
    if (rule_.full) return;
    const std::int64_t end = rule_.begin(static_cast<std::int64_t>(model.size())) - rule_.block;
    for (std::int64_t p = rule_.sink; p < end; ++p)
      model[static_cast<std::size_t>(p)].dropped = true;
  }

  // Pending token i sees exactly the positions of the rule, and their rows hold what was written.
  void check_seen(const Pair& pair, const std::vector<ModelToken>& after, std::size_t i) const {
    const KvStore& store = pair.memory.groups().front().store();
    const VisibleRows rows = pair.memory.visible(LayerIndex(0))[i];
    const std::int64_t t = pair.memory.length() + static_cast<std::int64_t>(i);
    ASSERT_LE(0, rows.sink_end);
    ASSERT_LE(rows.sink_end, rows.begin);
    ASSERT_LE(rows.begin, rows.end);
    std::int64_t n_seen = 0;
    for (std::int64_t row = 0; row < rows.end; ++row) {
      if (row >= rows.sink_end && row < rows.begin) continue;
      const std::int64_t p = row < store.n_rows()
                                 ? store.positions()[static_cast<std::size_t>(row)].value()
                                 : pair.memory.length() + row - store.n_rows();
      ASSERT_TRUE(rule_.sees(t, p)) << "query " << t << " position " << p;
      ++n_seen;
      if (n_seen % 7 == 1 || p + 5 > t) {
        ASSERT_TRUE(holds_known(store, row, after[static_cast<std::size_t>(p)].id)) << p;
      }
    }
    const std::int64_t first_in_window = rule_.full ? 0 : std::min(rule_.begin(t), t + 1);
    const std::int64_t sinks = std::min(rule_.sink, t + 1);
    ASSERT_EQ(n_seen, sinks + t + 1 - std::max(first_in_window, sinks));
  }

  void truncate(Pair& pair) {
    const std::size_t n = pair.model.size();
    // A few tokens, any number, or nearly all (into the sinks).
    std::size_t back = below(std::min<std::size_t>(n, 50) + 1);
    if (below(3) == 0) back = below(n + 1);
    if (below(5) == 0) back = n - below(std::min<std::size_t>(n, 8) + 1);
    const auto length = static_cast<std::int64_t>(n - back);
    bool possible = true;  // everything that the next query sees must still be there
    for (std::int64_t p = 0; p < length; ++p) {
      possible &= !(rule_.sees(length, p) && pair.model[static_cast<std::size_t>(p)].dropped);
    }
    ASSERT_EQ(pair.memory.truncate(length).ok(), possible) << n << " -> " << length;
    if (possible) pair.model.resize(static_cast<std::size_t>(length));
    n_refused_ += possible ? 0 : 1;
  }

  // Copies what rows_to_keep() names into one block, as a file does, and goes on with a memory
  // restored from it.
  void save_and_restore(Pair& pair) {
    if (pair.model.empty()) return;
    std::vector<Position> positions;
    for (const auto& [begin, end] : pair.memory.groups().front().rows_to_keep()) {
      for (std::int64_t row = begin; row < end; ++row) {
        positions.push_back(
            pair.memory.groups().front().store().positions()[static_cast<std::size_t>(row)]);
      }
    }
    auto block =
        allocate_row_block(small_layout(), static_cast<std::int64_t>(positions.size()) + 1).value();
    KvStore copy(small_layout());
    ASSERT_TRUE(copy.adopt(block, {}).ok());
    if (!positions.empty()) {
      ASSERT_TRUE(copy.begin_append(positions).ok());
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const ModelToken& token = pair.model[static_cast<std::size_t>(positions[i].value())];
        ASSERT_FALSE(token.dropped);
        write_known(copy, static_cast<std::int64_t>(i), token.id);
      }
      copy.commit();
    }
    block->writable = positions.empty();
    const SavedRows saved{block, positions};
    auto restored = ContextMemory::restore(small_layout(), rule_.spec(), pair.memory.tokens(),
                                           std::span(&saved, 1));
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    pair.memory = std::move(restored).value();
    drop(pair.model);
  }

  static void check_tokens(const Pair& pair) {
    ASSERT_EQ(pair.memory.length(), static_cast<std::int64_t>(pair.model.size()));
    for (std::size_t i = 0; i < pair.model.size(); ++i) {
      ASSERT_EQ(pair.memory.tokens()[i], pair.model[i].token);
    }
  }

  std::mt19937_64 random_;
  Rule rule_;
  std::vector<Pair> pairs_;
  std::uint64_t next_id_ = 0;
  int n_refused_ = 0;
};

TEST(ContextMemoryProperty, RandomOperationsAgreeWithTheRule) {
  int n_refused = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence sequence(seed);
    for (int step = 0; step < 25; ++step) {
      sequence.step();
      if (HasFatalFailure()) return;
    }
    sequence.check_all();
    if (HasFatalFailure()) return;
    n_refused += sequence.n_refused();
  }
  EXPECT_GT(n_refused, 50);  // the sequences do reach into dropped rows
}

}  // namespace
}  // namespace volvelle
