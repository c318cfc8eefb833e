// 1,000 seeded random sequences of operations on several memories (memory_operations.hpp), without
// a model: the rows of a token are a known function of the token, its position and the layer, so
// that a row of another memory, of another position or of a time before a truncation shows.
//
// Layouts: one shape for all layers, windows of several widths beside none, windows only, and each
// storage type; specs: everything, everything with swa(full), random sinks and windows. After each
// operation tokens and a sample of rows are compared, by every ask all rows that the queries see,
// at the end every row. When all memories are gone, no block of memory is mapped any more.
#include <sys/mman.h>
#include <unistd.h>

#include <set>

#include "law/memory_operations.hpp"
#include "law/store_reader.hpp"

namespace volvelle {
namespace {

using testing::Choice;
using testing::MemoryModel;
using testing::Side;
using testing::Work;

/// Rows of small whole numbers that every storage type gives back unchanged: the first element of a
/// quantised block makes its scale 1.
class KnownRows {
 public:
  explicit KnownRows(std::uint64_t seed) : layout_(layout_of(seed)), choice_(seed + 1000000) {
    spec_ = *parse_memory_spec(terms() + "+kv(k=" + std::string(to_string(layout_.k_type)) +
                               ",v=" + std::string(to_string(layout_.v_type)) + ")");
  }

  const StoreLayout& layout() const { return layout_; }
  const MemorySpec& spec() const { return spec_; }
  std::int64_t longest_append() const { return 300; }

  std::vector<TokenId> new_tokens(Choice&, std::int64_t n) {
    std::vector<TokenId> tokens;
    for (std::int64_t i = 0; i < n; ++i) tokens.push_back(next_token_++);  // no two are equal
    return tokens;
  }

  Status advance(std::span<const Work> works, Choice& choice, bool interrupted) {
    std::int64_t n_left = 0;
    for (const Work& work : works) n_left += std::ssize(work.tokens);
    const std::int64_t stop = interrupted ? choice.below(n_left) : n_left;
    std::vector<std::int64_t> done(works.size());
    for (std::int64_t n_done = 0; n_done < n_left;) {
      const std::int64_t size = run_ubatch(works, done, choice, stop - n_done);
      if (size == 0) return Error{ErrorCode::kCancelled, "stopped"};
      n_done += size;
    }
    return {};
  }

  void check(const ContextMemory& memory, const MemoryModel& model, std::size_t stride) {
    for (std::size_t layer = 0; layer < layout_.layers.size(); ++layer) {
      if (!model.stores(layer)) continue;
      remember_blocks(memory, layer);
      const std::vector<Position> kept = model.kept(layer);
      for (std::size_t i = 0; i < kept.size(); i += stride)
        ASSERT_TRUE(holds(memory, model.tokens(), layer, kept[i].value())) << kept[i].value();
      if (kept.empty()) continue;
      ASSERT_TRUE(holds(memory, model.tokens(), layer, kept.back().value()));
    }
  }

  void ask(ContextMemory& branch, MemoryModel model, Choice& choice) {
    for (std::size_t question = 1 + choice.below(3); question > 0; --question) {
      const std::vector<TokenId> tokens = new_tokens(choice, 1 + choice.below(std::int64_t{4}));
      ASSERT_TRUE(branch.begin(tokens).ok());
      std::vector<TokenId> all = model.tokens();
      all.insert(all.end(), tokens.begin(), tokens.end());
      for (std::int64_t i = 0; i < std::ssize(tokens); ++i) write(branch, i, all);
      for (std::size_t layer = 0; layer < layout_.layers.size(); ++layer) {
        if (!model.stores(layer)) continue;
        for (std::int64_t i = 0; i < std::ssize(tokens); ++i)
          check_seen(branch, model.seen(layer, branch.length() + i), layer, i, all);
      }
      branch.commit();
      model.append(tokens);
    }
  }

  /// Blocks of memories that are gone must be gone. Files' rows are mapped too.
  void expect_no_block_is_left() const {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    for (const std::byte* const rows : blocks_) {
      const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(rows) / page * page;
      unsigned char resident = 0;
      const int result = ::mincore(reinterpret_cast<void*>(at), page, &resident);
      ASSERT_TRUE(result != 0 && errno == ENOMEM) << "a block is still mapped";
    }
    ASSERT_FALSE(blocks_.empty());
  }

 private:
  static StoreLayout layout_of(std::uint64_t seed) {
    const auto with = [](std::vector<LayerShape> layers, ElementType k, ElementType v) {
      return StoreLayout{std::move(layers), k, v};
    };
    switch (seed % 5) {
      case 0:
        return with({{2, 3, 2}}, ElementType::kF32, ElementType::kF16);
      case 1:
        return with({{1, 3, 2}, {2, 2, 5, 8}, {1, 4, 4}, {}, {1, 2, 3, 100}, {3, 1, 2, 8}},
                    ElementType::kF16, ElementType::kF16);
      case 2:
        return with({{1, 2, 2, 16}, {1, 3, 1, 40}}, ElementType::kBF16, ElementType::kF32);
      case 3:
        return with({{1, 33, 5}, {2, 4, 34, 30}}, ElementType::kQ8_0, ElementType::kQ4_0);
      default:
        return with({{}, {1, 2, 3, 300}, {1, 1, 1}}, ElementType::kF16, ElementType::kQ8_0);
    }
  }

  std::string terms() {
    const std::size_t kind = choice_.below(6);
    if (kind == 0) return "full";
    if (kind == 1) return "full+swa(full)";
    const std::string block = std::to_string(choice_.one_in(3) ? 1 : 1 + choice_.below(40));
    const std::string tokens = std::to_string(1 + choice_.below(120));
    const std::string window = "window(" + tokens + ",block=" + block + ")";
    return kind == 2 ? window : "sink(" + std::to_string(1 + choice_.below(6)) + ")+" + window;
  }

  /// As a session does: up to kUbatch tokens of the works in their order, all or nothing. Returns
  /// how many; 0 if `stop` falls into it.
  std::int64_t run_ubatch(std::span<const Work> works, std::vector<std::int64_t>& done,
                          Choice& choice, std::int64_t stop) {
    constexpr std::int64_t kUbatch = 64;
    std::vector<std::int64_t> sizes(works.size());
    std::vector<std::pair<std::size_t, std::int64_t>> order;  // work and token
    for (std::size_t i = 0; i < works.size(); ++i) {
      const std::int64_t room = kUbatch - std::ssize(order);
      sizes[i] = std::min(room, std::ssize(works[i].tokens) - done[i]);
      if (sizes[i] == 0) continue;
      const std::span<const TokenId> tokens(works[i].tokens);
      EXPECT_TRUE(works[i]
                      .memory
                      ->begin(tokens.subspan(static_cast<std::size_t>(done[i]),
                                             static_cast<std::size_t>(sizes[i])))
                      .ok());
      for (std::int64_t t = 0; t < sizes[i]; ++t) order.emplace_back(i, t);
    }
    // Threads write their rows in any order; a stop comes between any two of them.
    for (std::size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[choice.below(n)]);
    const bool stopped = stop < std::ssize(order);
    if (stopped) order.resize(static_cast<std::size_t>(stop));
    for (const auto& [i, t] : order) {
      write_row(*works[i].memory, t, works[i].tokens[static_cast<std::size_t>(done[i] + t)],
                works[i].memory->length() + t);
    }
    for (std::size_t i = 0; i < works.size(); ++i) {
      if (sizes[i] == 0) continue;
      stopped ? works[i].memory->rollback() : works[i].memory->commit();
      done[i] += sizes[i];
    }
    return stopped ? 0 : std::ssize(order);
  }

  void write(ContextMemory& memory, std::int64_t i, std::span<const TokenId> all) {
    const std::int64_t position = memory.length() + i;
    write_row(memory, i, all[static_cast<std::size_t>(position)], position);
  }
  void write_row(ContextMemory& memory, std::int64_t i, TokenId token, std::int64_t position) {
    for (std::size_t layer = 0; layer < layout_.layers.size(); ++layer) {
      if (layout_.layers[layer].n_kv_heads == 0) continue;
      const LayerIndex index(static_cast<std::int64_t>(layer));
      memory.write_k(index, i, expected(token, position, layer, Side::kKey).data());
      memory.write_v(index, i, expected(token, position, layer, Side::kValue).data());
    }
  }

  /// The row of a token at a position, [n_kv_heads * dim]. Valid until the next call.
  const std::vector<float>& expected(TokenId token, std::int64_t position, std::size_t layer,
                                     Side side) {
    const LayerShape& shape = layout_.layers[layer];
    const ElementType type = side == Side::kKey ? layout_.k_type : layout_.v_type;
    const int dim = testing::row_dim(shape, side);
    const int levels = type == ElementType::kQ4_0 ? 16 : 255;
    auto x = static_cast<std::uint64_t>(token) << 32 | static_cast<std::uint64_t>(position) << 8 |
             layer << 1 | (side == Side::kKey);
    row_.resize(static_cast<std::size_t>(shape.n_kv_heads * dim));
    for (std::size_t i = 0; i < row_.size(); ++i) {
      x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
      x ^= x >> 29;
      row_[i] = static_cast<float>(static_cast<int>((x >> 40) % static_cast<unsigned>(levels)) -
                                   levels / 2);
      if (!is_block_quantized(type)) continue;
      if (i % static_cast<std::size_t>(dim) % 32 == 0)
        row_[i] = type == ElementType::kQ4_0 ? -8.0f : 127.0f;
    }
    return row_;
  }

  bool holds(const ContextMemory& memory, std::span<const TokenId> tokens, std::size_t layer,
             std::int64_t position) {
    const KvStore& store = memory.group_of(LayerIndex(static_cast<std::int64_t>(layer))).store();
    const auto positions = store.positions();
    const auto found = std::lower_bound(positions.begin(), positions.end(), Position(position));
    // Pending rows follow the others.
    const std::int64_t row = position >= memory.length()
                                 ? store.n_rows() + position - memory.length()
                                 : found - positions.begin();
    for (const Side side : {Side::kKey, Side::kValue}) {
      const auto stored = testing::read_row(store, static_cast<int>(layer), side, row);
      const TokenId token = tokens[static_cast<std::size_t>(position)];
      if (!stored || *stored != expected(token, position, layer, side)) return false;
    }
    return true;
  }

  void check_seen(const ContextMemory& memory, const std::vector<std::int64_t>& positions,
                  std::size_t layer, std::int64_t i, std::span<const TokenId> all) {
    const LayerIndex index(static_cast<std::int64_t>(layer));
    const VisibleRows rows = memory.visible(index)[static_cast<std::size_t>(i)];
    ASSERT_LE(0, rows.sink_end);
    ASSERT_LE(rows.sink_end, rows.begin);
    ASSERT_LE(rows.begin, rows.end);
    ASSERT_EQ(rows.sink_end + rows.end - rows.begin, std::ssize(positions));
    for (const std::int64_t p : positions) ASSERT_TRUE(holds(memory, all, layer, p)) << p;
    // As many rows as positions: so these are their rows, if the first and last ones are.
    const auto positions_of_rows = memory.group_of(index).store().positions();
    const auto position_of = [&](std::int64_t row) {
      const std::int64_t n = std::ssize(positions_of_rows);
      return row < n ? positions_of_rows[static_cast<std::size_t>(row)].value()
                     : memory.length() + row - n;
    };
    if (rows.sink_end > 0) {
      ASSERT_EQ(position_of(rows.sink_end - 1), rows.sink_end - 1);
    }
    if (rows.begin == rows.end) return;
    ASSERT_EQ(position_of(rows.begin), positions[static_cast<std::size_t>(rows.sink_end)]);
    ASSERT_EQ(position_of(rows.end - 1), positions.back());
  }

  void remember_blocks(const ContextMemory& memory, std::size_t layer) {
    for (const KeyValueSegment& s : memory.segments(LayerIndex(static_cast<std::int64_t>(layer))))
      blocks_.insert(s.k);
  }

  StoreLayout layout_;
  Choice choice_;
  MemorySpec spec_;
  TokenId next_token_ = 0;
  std::vector<float> row_;
  std::set<const std::byte*> blocks_;
};

/// The operations and what they work on; the backend outlives them.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed)
      : rows_(seed), operations_(std::in_place, rows_, seed, testing::fast_folder()) {}
  void step() { operations_->step(); }
  void check() { operations_->check(); }
  void finish() {
    operations_->finish();
    if (::testing::Test::HasFailure()) return;
    n_refused += operations_->n_refused();
    operations_.reset();
    rows_.expect_no_block_is_left();
  }
  static inline int n_refused = 0;

 private:
  KnownRows rows_;
  std::optional<testing::MemoryOperations<KnownRows>> operations_;
};

TEST(MemoryOperations, AThousandSequencesAgreeWithAPlainModel) {
  testing::run_sequences(1000, 25,
                         [](std::uint64_t seed) { return std::make_unique<Sequence>(seed); });
  EXPECT_GT(Sequence::n_refused, 100);  // they do reach into dropped rows
}

}  // namespace
}  // namespace volvelle
