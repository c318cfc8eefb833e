// What one memory was told never shows in another, whatever happened in between: reloaded files,
// failed loads, cancelled and failed steps, freed and reused memory, shared batches and threads.
//
// The wired retriever makes it visible: asked for a key it answers with the value behind that key
// if its memory holds the fact, and "none" if it does not. Its answers have margins of 16 nats, so
// rounding can not hide a leak, and a leak of one fact is one wrong word.
#include <algorithm>
#include <fstream>
#include <thread>

#include "runtime/support.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::test {
namespace {

class Isolation : public ::testing::Test {
 protected:
  Isolation() : model_(load_model(kWired)), session_(open()) {}

  Session open(int n_threads = 1) const {
    SessionOptions options;
    options.n_threads = n_threads;
    options.n_ubatch = 16;
    options.max_sequences = 8;
    options.deterministic = true;
    options.cancel = cancel_;
    return require(Session::create(model_, options));
  }

  std::vector<TokenId> tokens_of(const std::string& text, bool begin = false) const {
    return require(model_.tokenizer().tokenize(text, {.add_special = begin})).tokens;
  }

  ContextMemory told(const std::string& text, const std::string& spec = "full") {
    ContextMemory memory = require(session_.begin(require(parse_memory_spec(spec))));
    require(session_.step(memory, tokens_of(text, true), Logits::kNone));
    return memory;
  }

  std::string word_of(std::span<const float> logits) const {
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    const std::string piece = model_.tokenizer().piece(static_cast<TokenId>(best));
    return piece.starts_with(' ') ? piece.substr(1) : piece;
  }

  std::string ask(const ContextMemory& memory, const std::string& key) {
    ContextMemory branch = memory.clone();
    require(session_.step(branch, tokens_of(key), Logits::kLast));
    return word_of(session_.logits());
  }

  std::filesystem::path saved(const ContextMemory& memory, const std::string& name) {
    MemoryRecord record;
    record.spec = to_string(memory.spec());
    record.tokens.assign(memory.tokens().begin(), memory.tokens().end());
    record.ranges.resize(record.tokens.size());
    require(save_memory(folder_ / name, record, memory));
    return folder_ / name;
  }

  static Result<ContextMemory> loaded(const std::filesystem::path& path) {
    Result<MemoryFile> file = MemoryFile::open(path);
    if (!file.ok()) return file.error();
    const Status verified = file->verify_rows();
    if (!verified.ok()) return verified.error();
    return file->restore();
  }

  CancelToken cancel_;
  Model model_;
  Session session_;
  TemporaryFolder folder_;
};

constexpr const char* kHers = "f01 k05 v07 f02 k11 v13 f03";
constexpr const char* kHis = "f04 k05 v50 f02 k22 v23 f05";

TEST_F(Isolation, TwoTenantsNeverHearOfEachOther) {
  const ContextMemory hers = told(kHers);
  const ContextMemory his = told(kHis);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(ask(hers, "k05"), "v07");
    EXPECT_EQ(ask(his, "k05"), "v50");
    EXPECT_EQ(ask(hers, "k22"), "none");
    EXPECT_EQ(ask(his, "k11"), "none");
  }
}

TEST_F(Isolation, TenantsInOneBatchNeverHearOfEachOther) {
  ContextMemory hers = told(kHers);
  ContextMemory his = told(kHis);
  ContextMemory new_one = require(session_.begin(MemorySpec::full_memory()));
  for (int round = 0; round < 3; ++round) {
    std::vector<ContextMemory> branches;
    branches.push_back(his.clone());
    branches.push_back(hers.clone());
    branches.push_back(new_one.clone());
    const auto k05 = tokens_of("k05");
    const auto k22 = tokens_of("f01 k22");
    const auto first = tokens_of("f01 k05", true);
    const SequenceStep steps[] = {{&branches[0], k05, Logits::kLast},
                                  {&branches[1], k22, Logits::kLast},
                                  {&branches[2], first, Logits::kLast}};
    require(session_.step(steps));
    EXPECT_EQ(word_of(session_.sequence_logits(0)), "v50");
    EXPECT_EQ(word_of(session_.sequence_logits(1)), "none");
    EXPECT_EQ(word_of(session_.sequence_logits(2)), "none");
    // Facts told in one batch stay with whom they were told to.
    const auto to_her = tokens_of("f06 k30 v31");
    const auto to_him = tokens_of("f06 k30 v32");
    const SequenceStep facts[] = {{&hers, to_her, Logits::kNone}, {&his, to_him, Logits::kNone}};
    if (round == 0) require(session_.step(facts));
    EXPECT_EQ(ask(hers, "k30"), "v31");
    EXPECT_EQ(ask(his, "k30"), "v32");
  }
}

TEST_F(Isolation, ANewMemoryDoesNotInheritTheRowsOfOneThatIsGone) {
  for (int i = 0; i < 10; ++i) {
    {
      const ContextMemory gone = told(kHers);
    }
    const ContextMemory fresh = told("f01 f02 f03");  // likely in the very same pages
    EXPECT_EQ(ask(fresh, "k05"), "none");
    EXPECT_EQ(ask(fresh, "k11"), "none");
  }
}

TEST_F(Isolation, WhatWasTakenBackIsForgotten) {
  ContextMemory memory = told("f01 f02");
  const std::int64_t before = memory.length();
  require(session_.step(memory, tokens_of("k05 v07 f03"), Logits::kNone));
  EXPECT_EQ(ask(memory, "k05"), "v07");
  require(memory.truncate(before));
  EXPECT_EQ(ask(memory, "k05"), "none");
  require(session_.step(memory, tokens_of("f08 f09"), Logits::kNone));  // over the old rows
  EXPECT_EQ(ask(memory, "k05"), "none");
}

TEST_F(Isolation, WhatWasCancelledIsForgotten) {
  ContextMemory memory = told("f01 f02");
  const std::int64_t before = memory.length();
  cancel_.cancel();
  EXPECT_EQ(session_.step(memory, tokens_of("k05 v07 f03"), Logits::kNone).error().code,
            ErrorCode::kCancelled);
  cancel_.flag() = false;
  EXPECT_EQ(memory.length(), before);
  EXPECT_EQ(ask(memory, "k05"), "none");
}

TEST_F(Isolation, BranchesNeverHearWhatWasSaidInOthers) {
  const ContextMemory trunk = told("f01 k05 v07 f02");
  ContextMemory left = trunk.clone();
  ContextMemory right = trunk.clone();
  require(session_.step(left, tokens_of("k11 v13 f03"), Logits::kNone));
  require(session_.step(right, tokens_of("k22 v23 f03"), Logits::kNone));
  ContextMemory leaf = left.clone();
  require(session_.step(leaf, tokens_of("k33 v34 f04"), Logits::kNone));
  const ContextMemory* const all[] = {&left, &right, &trunk, &leaf};
  for (const ContextMemory* const memory : all) EXPECT_EQ(ask(*memory, "k05"), "v07");
  EXPECT_EQ(ask(left, "k22"), "none");
  EXPECT_EQ(ask(right, "k11"), "none");
  EXPECT_EQ(ask(trunk, "k11"), "none");
  EXPECT_EQ(ask(left, "k33"), "none");
  EXPECT_EQ(ask(leaf, "k11"), "v13");
}

TEST_F(Isolation, ALoadedFileIsNotAnotherConversation) {
  const auto hers = saved(told(kHers), "hers.vmem");
  const auto his = saved(told(kHis), "his.vmem");
  const ContextMemory a = require(loaded(hers));
  const ContextMemory b = require(loaded(his));
  EXPECT_EQ(ask(a, "k05"), "v07");
  EXPECT_EQ(ask(b, "k05"), "v50");
  EXPECT_EQ(ask(a, "k22"), "none");
  EXPECT_EQ(ask(b, "k11"), "none");
}

TEST_F(Isolation, ReplacingAFileDoesNotChangeTheMemoryThatWasLoadedFromIt) {
  const auto path = saved(told(kHers), "m.vmem");
  const ContextMemory before = require(loaded(path));
  saved(told(kHis), "m.vmem");
  EXPECT_EQ(ask(before, "k05"), "v07");
  EXPECT_EQ(ask(require(loaded(path)), "k05"), "v50");
  std::filesystem::remove(path);
  EXPECT_EQ(ask(before, "k11"), "v13");
}

TEST_F(Isolation, AfterAFailedRestoreOtherAnswersAreTheSame) {
  const ContextMemory memory = told(kHers);
  const auto path = saved(told(kHis), "m.vmem");
  std::string bytes = require(read_text_file(path));
  const auto row_of = [&] {
    ContextMemory branch = memory.clone();
    require(session_.step(branch, tokens_of("f02 k05"), Logits::kLast));
    return copy(session_.logits());
  };
  const std::vector<float> before = row_of();
  for (std::size_t at = 3; at < bytes.size(); at += bytes.size() / 40) {
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    std::ofstream(folder_ / "damaged.vmem", std::ios::binary | std::ios::trunc) << bytes;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    ASSERT_FALSE(loaded(folder_ / "damaged.vmem").ok()) << at;
    ASSERT_EQ(row_of(), before) << at;
    ASSERT_EQ(ask(memory, "k22"), "none");
  }
}

TEST_F(Isolation, RestoreOfAMissingFileLeavesTheSessionAsItWas) {
  const ContextMemory memory = told(kHers);
  EXPECT_EQ(loaded(folder_ / "missing.vmem").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ask(memory, "k05"), "v07");
}

TEST_F(Isolation, SavingAnEmptyMemoryIsRefusedAndKeepsTheOldFile) {
  const auto path = saved(told(kHers), "m.vmem");
  const ContextMemory empty = require(session_.begin(MemorySpec::full_memory()));
  MemoryRecord record;
  record.spec = "full";
  const auto written = save_memory(path, record, empty);
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find("no tokens"), std::string::npos);
  EXPECT_EQ(ask(require(loaded(path)), "k05"), "v07");
}

TEST_F(Isolation, AFailedStepLeavesEveryMemoryAsItWas) {
  ContextMemory memory = told(kHers);
  const ContextMemory other = told(kHis);
  const std::vector<TokenId> bad{5, 999999};
  EXPECT_FALSE(session_.step(memory, bad, Logits::kLast).ok());
  EXPECT_EQ(ask(memory, "k05"), "v07");
  EXPECT_EQ(ask(other, "k05"), "v50");
}

TEST_F(Isolation, FourIdenticalRequestsGiveFourIdenticalAnswers) {
  const ContextMemory memory = told(kHers);
  const auto path = saved(memory, "m.vmem");
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < 4; ++i) {
    ContextMemory branch = i < 2 ? memory.clone() : require(loaded(path));
    require(session_.step(branch, tokens_of("f02 k05"), Logits::kLast));
    rows.push_back(copy(session_.logits()));
  }
  for (const auto& row : rows) EXPECT_EQ(row, rows.front());
}

TEST_F(Isolation, TenantsOnTwoThreadsNeverHearOfEachOther) {
  const auto hers = saved(told(kHers), "hers.vmem");
  const auto his = saved(told(kHis), "his.vmem");
  const auto answers = [&](const std::filesystem::path& path, const std::string& told_now) {
    Session session = open();
    std::vector<std::string> words;
    for (int i = 0; i < 10; ++i) {
      ContextMemory memory = require(loaded(path));
      require(session.step(memory, tokens_of(told_now), Logits::kNone));
      for (const char* key : {"k05", "k11", "k22", "k40"}) {
        ContextMemory branch = memory.clone();
        require(session.step(branch, tokens_of(key), Logits::kLast));
        words.push_back(word_of(session.logits()));
      }
    }
    return words;
  };
  std::vector<std::string> of_her;
  std::thread other([&] { of_her = answers(hers, "k40 v41 f02"); });
  const std::vector<std::string> of_him = answers(his, "k40 v42 f02");
  other.join();
  const std::vector<std::string> to_her{"v07", "v13", "none", "v41"};
  const std::vector<std::string> to_him{"v50", "none", "v23", "v42"};
  for (std::size_t i = 0; i < of_her.size(); ++i) {
    EXPECT_EQ(of_her[i], to_her[i % 4]);
    EXPECT_EQ(of_him[i], to_him[i % 4]);
  }
}

}  // namespace
}  // namespace volvelle::test
