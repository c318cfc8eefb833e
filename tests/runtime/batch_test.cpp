// Several memories in one step: each gets what it would have got alone, an error in one leaves all
// as they were, and sessions on several threads share a model and a loaded memory file.
//
// Deterministic mode, one thread: our attention gives equal bits for any batch. The engine
// multiplies one token alone in another order than several, so tokens come in even numbers, which
// leaves no graph with one; decoding one by one is compared up to rounding: KL at most 1e-5, the
// project's bound for chunk sizes.
#include <algorithm>
#include <random>
#include <thread>

#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::test {
namespace {

SessionOptions batch_options(int n_ubatch, int max_sequences) {
  SessionOptions options;
  options.n_threads = 1;
  options.n_ubatch = n_ubatch;
  options.max_sequences = max_sequences;
  options.deterministic = true;
  return options;
}

MemorySpec spec_of(const std::string& text) { return require(parse_memory_spec(text)); }

std::vector<TokenId> some_tokens(const Model& model, std::mt19937& random, std::int64_t n) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(model.info().n_vocab)));
  return tokens;
}

/// One of several memories that are stepped together, and its twin that is stepped alone.
struct Member {
  ContextMemory together;
  ContextMemory alone;
  std::vector<TokenId> tokens;
  Logits want = Logits::kLast;
};

/// A single row of logits is one more token alone: the engine computes the last layer for the rows
/// that are wanted only.
void expect_same_logits(std::span<const float> alone, std::span<const float> together,
                        Logits want) {
  if (want == Logits::kAll) {
    EXPECT_EQ(copy(together), copy(alone));
  } else {
    EXPECT_LE(kl_divergence(alone, together), 1e-5);
  }
}

void expect_same_bytes(const ContextMemory& a, const ContextMemory& b) {
  ASSERT_EQ(a.length(), b.length());
  EXPECT_TRUE(std::equal(a.tokens().begin(), a.tokens().end(), b.tokens().begin()));
  const TemporaryFolder folder;
  const auto saved = [&](const ContextMemory& memory) {
    MemoryRecord record;
    record.spec = to_string(memory.spec());
    record.tokens.assign(memory.tokens().begin(), memory.tokens().end());
    record.ranges.resize(record.tokens.size());
    require(save_memory(folder / "m.vmem", record, memory));
    return require(read_text_file(folder / "m.vmem"));
  };
  EXPECT_TRUE(saved(a) == saved(b));
}

class Batch : public ::testing::TestWithParam<const char*> {};

TEST_P(Batch, EveryMemoryGetsTheLogitsThatItWouldGetAlone) {
  const Model model = load_model(GetParam());
  std::mt19937 random(7);
  for (const int n_memories : {2, 3, 8}) {
    Session session = require(Session::create(model, batch_options(48, 8)));
    Session single = require(Session::create(model, batch_options(48, 1)));
    std::vector<Member> members;
    for (int i = 0; i < n_memories; ++i) {
      // Memories of one batch need not have the same spec.
      const MemorySpec spec = spec_of(i % 3 == 1 ? "sink(4)+window(40,block=16)" : "full");
      ContextMemory memory = require(single.begin(spec));
      const auto history = some_tokens(model, random, 2 + 2 * (random() % 75));
      if (i > 0) require(single.step(memory, history, Logits::kNone));  // the first one is empty
      members.push_back({memory.clone(), std::move(memory), {}, {}});
    }
    for (const unsigned longest : {2u, 30u, 120u}) {  // fits one graph, or is cut over several
      std::vector<SequenceStep> steps;
      for (std::size_t i = 0; i < members.size(); ++i) {
        Member& m = members[i];
        m.tokens = some_tokens(model, random, 2 + 2 * (random() % (longest / 2)));
        m.want = i % 3 == 0 ? Logits::kAll : i % 3 == 1 ? Logits::kLast : Logits::kNone;
        steps.push_back({&m.together, m.tokens, m.want});
      }
      require(session.step(steps));
      for (std::size_t i = 0; i < members.size(); ++i) {
        Member& m = members[i];
        require(single.step(m.alone, m.tokens, m.want));
        const std::int64_t n = m.want == Logits::kAll    ? std::ssize(m.tokens)
                               : m.want == Logits::kLast ? 1
                                                         : 0;
        for (std::int64_t row = 0; row < n; ++row)
          expect_same_logits(single.logits(row), session.sequence_logits(i, row), m.want);
        if (HasFailure()) FAIL() << n_memories << " memories, memory " << i;
        EXPECT_THROW((void)session.sequence_logits(i, n), std::logic_error);
        EXPECT_THROW((void)session.sequence_logits(i, -1), std::logic_error);
        expect_same_bytes(m.together, m.alone);
      }
      EXPECT_THROW((void)session.sequence_logits(members.size(), 0), std::logic_error);
    }
  }
}

TEST_P(Batch, DecodingManyTogetherAgreesWithDecodingEachUpToRounding) {
  const Model model = load_model(GetParam());
  Session session = require(Session::create(model, batch_options(64, 8)));
  Session single = require(Session::create(model, batch_options(64, 1)));
  std::mt19937 random(11);
  std::vector<Member> members;
  for (int i = 0; i < 8; ++i) {
    ContextMemory memory = require(single.begin(MemorySpec::full_memory()));
    require(single.step(memory, some_tokens(model, random, 10 + 17 * i), Logits::kNone));
    members.push_back({memory.clone(), std::move(memory), {}, {}});
  }
  for (int step = 0; step < 5; ++step) {
    std::vector<SequenceStep> steps;
    for (Member& m : members) {
      m.tokens = some_tokens(model, random, 1);
      steps.push_back({&m.together, m.tokens, Logits::kLast});
    }
    require(session.step(steps));
    for (std::size_t i = 0; i < members.size(); ++i) {
      require(single.step(members[i].alone, members[i].tokens, Logits::kLast));
      EXPECT_LE(kl_divergence(single.logits(), session.sequence_logits(i)), 1e-5);
      // Another memory's answer would be far away, so the bound means something.
      EXPECT_GT(kl_divergence(single.logits(), session.sequence_logits((i + 1) % 8)), 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Batch,
                         ::testing::Values("tiny/llama-gqa3.gguf", "tiny/gemma3.gguf",
                                           "tiny/gemma4.gguf", "tiny/gpt-oss.gguf"),
                         [](const auto& param) { return "Model" + std::to_string(param.index); });

class BatchErrors : public ::testing::Test {
 protected:
  BatchErrors()
      : model_(load_model("tiny/llama-gqa3.gguf")),
        session_(require(Session::create(model_, batch_options(32, 3)))) {
    std::mt19937 random(3);
    for (int i = 0; i < 4; ++i) {
      memories_.push_back(require(session_.begin(MemorySpec::full_memory())));
      require(session_.step(memories_.back(), some_tokens(model_, random, 20 + i), Logits::kNone));
    }
  }

  /// The step must fail with this code, and no memory may have changed.
  std::string refusal(std::span<const SequenceStep> steps, ErrorCode code) {
    std::vector<ContextMemory> before;
    for (const ContextMemory& memory : memories_) before.push_back(memory.clone());
    const Status status = session_.step(steps);
    EXPECT_FALSE(status.ok());
    if (status.ok()) return {};
    EXPECT_EQ(status.error().code, code) << status.error().message;
    for (std::size_t i = 0; i < memories_.size(); ++i) expect_same_bytes(memories_[i], before[i]);
    EXPECT_THROW((void)session_.logits(), std::logic_error);  // none that could be mistaken
    return status.error().message;
  }

  Model model_;
  Session session_;
  std::vector<ContextMemory> memories_;
  const std::vector<TokenId> good_{5, 6, 7};
};

TEST_F(BatchErrors, ABadTokenInOneLeavesAllUntouched) {
  const std::vector<TokenId> bad{5, static_cast<TokenId>(model_.info().n_vocab)};
  const std::vector<TokenId> negative{-1};
  for (const auto& tokens : {bad, negative}) {
    const SequenceStep steps[] = {{&memories_[0], good_, Logits::kLast},
                                  {&memories_[1], good_, Logits::kLast},
                                  {&memories_[2], tokens, Logits::kLast}};
    EXPECT_NE(refusal(steps, ErrorCode::kInvalidArgument).find("vocabulary"), std::string::npos);
  }
}

TEST_F(BatchErrors, AContextExceededInOneLeavesAllUntouched) {
  const std::vector<TokenId> long_text(static_cast<std::size_t>(model_.info().context_length), 5);
  const SequenceStep steps[] = {{&memories_[0], good_, Logits::kLast},
                                {&memories_[1], long_text, Logits::kNone}};
  const std::string message = refusal(steps, ErrorCode::kContextExceeded);
  for (const std::int64_t number : {std::int64_t{21}, model_.info().context_length})
    EXPECT_NE(message.find(std::to_string(number)), std::string::npos) << message;
}

TEST_F(BatchErrors, TheSameMemoryTwiceIsRefused) {
  const SequenceStep steps[] = {{&memories_[0], good_, Logits::kLast},
                                {&memories_[1], good_, Logits::kLast},
                                {&memories_[0], good_, Logits::kLast}};
  EXPECT_NE(refusal(steps, ErrorCode::kInvalidArgument).find("twice"), std::string::npos);
}

TEST_F(BatchErrors, MoreMemoriesThanTheSessionWasMadeForAreRefused) {
  std::vector<SequenceStep> steps;
  for (ContextMemory& memory : memories_) steps.push_back({&memory, good_, Logits::kLast});
  const std::string message = refusal(steps, ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("4 memories"), std::string::npos) << message;
  EXPECT_NE(message.find("made for 3"), std::string::npos) << message;
}

TEST_F(BatchErrors, AMemoryOfOtherStorageTypesIsRefused) {
  SessionOptions options = batch_options(32, 1);
  options.kv = {ElementType::kF32, ElementType::kF32};
  const Session other = require(Session::create(model_, options));
  ContextMemory stranger = require(other.begin(full_with(options.kv)));
  const SequenceStep steps[] = {{&memories_[0], good_, Logits::kLast},
                                {&stranger, good_, Logits::kLast}};
  EXPECT_NE(refusal(steps, ErrorCode::kMismatch).find("storage types"), std::string::npos);
  EXPECT_EQ(stranger.length(), 0);
}

TEST_F(BatchErrors, NoMemoryIsAMistakeOfTheCaller) {
  const SequenceStep steps[] = {{&memories_[0], good_, Logits::kLast},
                                {nullptr, good_, Logits::kLast}};
  EXPECT_THROW((void)session_.step(steps), std::logic_error);
  EXPECT_EQ(memories_[0].length(), 20);
}

TEST_F(BatchErrors, NothingToDoIsNoError) {
  require(session_.step(std::span<const SequenceStep>()));
  const SequenceStep steps[] = {{&memories_[0], {}, Logits::kLast},
                                {&memories_[1], good_, Logits::kLast},
                                {&memories_[2], {}, Logits::kAll}};
  require(session_.step(steps));
  EXPECT_EQ(memories_[0].length(), 20);
  EXPECT_EQ(memories_[1].length(), 24);
  EXPECT_THROW((void)session_.sequence_logits(0), std::logic_error);
  EXPECT_EQ(session_.sequence_logits(1).size(), static_cast<std::size_t>(model_.info().n_vocab));
  EXPECT_THROW((void)session_.sequence_logits(2), std::logic_error);
}

TEST_F(BatchErrors, ACancelledBatchKeepsWholeGraphsOnly) {
  SessionOptions options = batch_options(32, 3);
  int n_parts = 0;
  CancelToken cancel;
  options.cancel = cancel;
  options.capture = [&](const CapturedRows& rows) {
    // 32 tokens of the first memory; 18 of it and 14 of the second; stop in the third graph.
    if (rows.kind == CapturedRows::Kind::kKey && rows.layer == LayerIndex(0) && ++n_parts == 4)
      cancel.cancel();
  };
  Session session = require(Session::create(model_, options));
  std::mt19937 random(5);
  const auto first = some_tokens(model_, random, 50);
  const auto second = some_tokens(model_, random, 40);
  const SequenceStep steps[] = {{&memories_[0], first, Logits::kLast},
                                {&memories_[1], second, Logits::kLast},
                                {&memories_[2], good_, Logits::kLast}};
  const Status status = session.step(steps);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(memories_[0].length(), 20 + 50);
  EXPECT_EQ(memories_[1].length(), 21 + 14);
  EXPECT_EQ(memories_[2].length(), 22);
  // All of them go on as if nothing had happened: nothing is pending in any.
  require(session_.step(memories_[2], good_, Logits::kLast));
  require(session_.step(memories_[1], std::span(second).subspan(14), Logits::kLast));
  Session again = require(Session::create(model_, batch_options(32, 1)));
  ContextMemory fresh = require(again.begin(MemorySpec::full_memory()));
  require(again.step(fresh, memories_[1].tokens(), Logits::kLast));
  EXPECT_EQ(copy(session_.logits()), copy(again.logits()));
}

// --- threads ---------------------------------------------------------------------------------

TEST(SharedMemoryFile, TwoSessionsOnTwoThreadsReadItAtTheSameTime) {
  const Model model = load_model("tiny/gemma3.gguf");
  const TemporaryFolder folder;
  std::mt19937 random(13);
  Session writer = require(Session::create(model, batch_options(64, 1)));
  ContextMemory memory = require(writer.begin(MemorySpec::full_memory()));
  require(writer.step(memory, some_tokens(model, random, 600), Logits::kNone));
  MemoryRecord record;
  record.spec = "full";
  record.tokens.assign(memory.tokens().begin(), memory.tokens().end());
  record.ranges.resize(record.tokens.size());
  require(save_memory(folder / "m.vmem", record, memory));
  MemoryFile file = require(MemoryFile::open(folder / "m.vmem"));
  require(file.verify_rows());

  const auto question_of = [&](unsigned seed) {
    std::mt19937 own(seed);
    return some_tokens(model, own, 40);
  };
  // Each thread asks its own questions of one loaded file, goes on, and asks again.
  const auto answers = [&](const ContextMemory& loaded, unsigned seed) {
    Session session = require(Session::create(model, batch_options(64, 1)));
    std::vector<std::vector<float>> rows;
    for (unsigned i = 0; i < 8; ++i) {
      ContextMemory branch = i % 2 == 0 ? loaded.clone() : require(file.restore());
      require(session.step(branch, question_of(seed + i), Logits::kLast));
      rows.push_back(copy(session.logits()));
    }
    return rows;
  };
  const auto expected_a = answers(memory, 100);
  const auto expected_b = answers(memory, 200);
  const ContextMemory loaded_a = require(file.restore());
  const ContextMemory loaded_b = loaded_a.clone();
  std::vector<std::vector<float>> found_a;
  std::thread other([&] { found_a = answers(loaded_a, 100); });
  const auto found_b = answers(loaded_b, 200);
  other.join();
  EXPECT_EQ(found_a, expected_a);
  EXPECT_EQ(found_b, expected_b);
}

}  // namespace
}  // namespace volvelle::test
