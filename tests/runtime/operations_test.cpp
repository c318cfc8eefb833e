// Random sequences of operations on several memories (law/memory_operations.hpp) through the whole
// stack: whatever happened to a memory, the logits behind it are those of a fresh one that was fed
// the same tokens, bit for bit.
//
// Deterministic mode, one thread. Models: grouped heads, windowed layers, layers that read the rows
// of others, quantised rows, and the wired retriever; specs with and without a window. An ubatch of
// 32 tokens cuts most appends and batches into several graphs. No graph has a single token: the
// engine multiplies one in another order than several (docs/numerics.md).
#include "law/memory_operations.hpp"
#include "law/store_reader.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

using volvelle::testing::Choice;
using volvelle::testing::MemoryModel;
using volvelle::testing::MemoryOperations;
using volvelle::testing::read_row;
using volvelle::testing::Side;
using volvelle::testing::Work;

constexpr int kUbatch = 32;
constexpr std::size_t kPiece = 100;  // of the fresh memory's steps: other borders

struct Kind {
  const char* model;
  const char* spec;
  int n_sequences;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.model << " '" << kind.spec << "'";
}

class EngineRows {
 public:
  explicit EngineRows(const Kind& kind)
      : model_(load_model(kind.model)),
        spec_(require(parse_memory_spec(kind.spec))),
        session_(open(4)),
        reference_(open(1)) {}

  const StoreLayout& layout() const { return session_.layout(); }
  const MemorySpec& spec() const { return spec_; }
  std::int64_t longest_append() const { return 150; }

  std::vector<TokenId> new_tokens(Choice& choice, std::int64_t n) const {
    std::vector<TokenId> tokens;
    while (std::ssize(tokens) < n || tokens.size() % 2 != 0)  // so no graph has a single one
      tokens.push_back(static_cast<TokenId>(choice.below(model_.info().n_vocab)));
    return tokens;
  }

  Status advance(std::span<const Work> works, Choice& choice, bool interrupted) {
    std::vector<SequenceStep> steps;
    std::int64_t n = 0;
    for (const Work& work : works) {
      steps.push_back({work.memory, work.tokens, Logits::kNone});
      n += std::ssize(work.tokens);
    }
    const std::int64_t n_graphs = (n + kUbatch - 1) / kUbatch;
    stop_in_graph_ = interrupted ? 1 + choice.below(n_graphs) : 0;
    const Status status = session_.step(steps);
    stop_in_graph_ = 0;
    cancel_.flag() = false;
    return status;
  }

  /// At the end: the very bytes of a fresh memory's rows.
  void check(const ContextMemory& memory, const MemoryModel& model, std::size_t stride) {
    if (stride > 1 || model.length() == 0) return;
    const ContextMemory fresh = fresh_memory(model);
    for (std::size_t layer = 0; layer < model.n_layers(); ++layer) {
      if (!model.stores(layer)) continue;
      const LayerIndex index(static_cast<std::int64_t>(layer));
      for (const Position p : model.kept(layer)) {
        for (const Side side : {Side::kKey, Side::kValue}) {
          const auto row_of = [&](const ContextMemory& m) {
            return read_row(m.group_of(index).store(), static_cast<int>(layer), side, p.value());
          };
          ASSERT_TRUE(row_of(memory).has_value());
          ASSERT_EQ(row_of(memory), row_of(fresh))
              << "layer " << layer << ", position " << p.value();
        }
      }
    }
  }

  void ask(ContextMemory& branch, const MemoryModel& model, Choice& choice) {
    const auto question = new_tokens(choice, 2 + choice.below(std::int64_t{4}));
    require(session_.step(branch, question, Logits::kAll));
    ContextMemory fresh = fresh_memory(model);
    require(reference_.step(fresh, question, Logits::kAll));
    for (std::int64_t i = 0; i < std::ssize(question); ++i) {
      const auto found = session_.logits(i);
      const auto expected = reference_.logits(i);
      ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin(), expected.end()))
          << "behind " << model.length() << " tokens";
    }
    ++n_asked_;
  }
  int n_asked() const { return n_asked_; }

 private:
  Session open(int max_sequences) {
    SessionOptions options;
    options.n_threads = 1;
    options.n_ubatch = max_sequences > 1 ? kUbatch : static_cast<int>(kPiece);
    options.max_sequences = max_sequences;
    options.deterministic = true;
    options.kv = require(kv_types(spec_));
    if (max_sequences == 1) return require(Session::create(model_, options));
    options.cancel = cancel_;
    // Keys of the first layer that has some come once for each memory of a graph.
    options.capture = [this](const CapturedRows& rows) {
      const bool begins = rows.kind == CapturedRows::Kind::kKey && is_first(rows.layer);
      if (begins && stop_in_graph_ > 0 && --stop_in_graph_ == 0) cancel_.cancel();
    };
    return require(Session::create(model_, options));
  }

  bool is_first(LayerIndex layer) const {
    const auto& layers = model_.info().layers;
    const auto first = std::find_if(layers.begin(), layers.end(),
                                    [](const LayerShape& shape) { return shape.n_kv_heads > 0; });
    return layer.value() == first - layers.begin();
  }

  ContextMemory fresh_memory(const MemoryModel& model) {
    ContextMemory fresh = require(reference_.begin(spec_));
    std::span<const TokenId> rest(model.tokens());
    while (!rest.empty()) {  // never a single token, see above
      const std::size_t size = rest.size() == kPiece + 1 ? kPiece - 1 : kPiece;
      const auto part = rest.first(std::min(rest.size(), size));
      require(reference_.step(fresh, part, Logits::kNone));
      rest = rest.subspan(part.size());
    }
    return fresh;
  }

  Model model_;
  MemorySpec spec_;
  CancelToken cancel_;
  std::int64_t stop_in_graph_ = 0;
  Session session_;
  Session reference_;
  int n_asked_ = 0;
};

class Operations : public ::testing::TestWithParam<Kind> {};

TEST_P(Operations, LogitsBehindAnyHistoryAreThoseOfAFreshMemory) {
  EngineRows backend(GetParam());
  volvelle::testing::run_sequences(GetParam().n_sequences, 15, [&](std::uint64_t seed) {
    return std::make_unique<MemoryOperations<EngineRows>>(backend, seed,
                                                          volvelle::testing::fast_folder());
  });
  EXPECT_GT(backend.n_asked(), GetParam().n_sequences);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Operations,
    ::testing::Values(Kind{"tiny/llama-gqa3.gguf", "full", 8},
                      Kind{"tiny/llama-gqa3.gguf", "sink(4)+window(40,block=16)", 6},
                      Kind{"tiny/llama-dim80.gguf", "full+kv(k=q8_0,v=q4_0)", 6},
                      Kind{"tiny/gemma3.gguf", "full", 8},
                      Kind{"tiny/gemma3.gguf", "sink(4)+window(50)", 6},
                      Kind{"tiny/gemma4.gguf", "full", 8}, Kind{kWired, "full", 6},
                      Kind{kWired, "window(30)", 2}),
    [](const auto& param) { return "Case" + std::to_string(param.index); });

}  // namespace
}  // namespace volvelle::test
