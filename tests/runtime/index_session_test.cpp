// Decoding through an index with a real model: close to exact, cheap, and a state like any other:
// saved, branched, cut back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/support.hpp"
#include "volvelle/eval/fidelity.hpp"
#include "volvelle/eval/needle.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::test {
namespace {

constexpr const char* kSpec = "full+topk(k=128)";
constexpr std::size_t kTokens = 1500;
constexpr std::size_t kDocument = 1450;

MemorySpec spec(const std::string& text) { return require(parse_memory_spec(text)); }

class IndexSession : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new Model(load_model(kSmolQ41));
    tokens_ = new std::vector<TokenId>(book_tokens(*model_, "emma.txt", kTokens));
  }
  static void TearDownTestSuite() {
    delete tokens_;
    delete model_;
  }
  static std::span<const TokenId> document() { return std::span(*tokens_).first(kDocument); }

  static ContextMemory fold(Session& session, const std::string& text) {
    ContextMemory memory = require(session.begin(spec(text)));
    require(session.step(memory, document(), Logits::kNone));
    return memory;
  }
  /// Logits after each of the tokens behind the document, decoded one by one.
  static std::vector<std::vector<float>> decode(Session& session, ContextMemory& memory,
                                                std::size_t n = kTokens - kDocument) {
    std::vector<std::vector<float>> rows;
    for (std::size_t i = 0; i < n; ++i) {
      require(session.step(memory, std::span(*tokens_).subspan(kDocument + i, 1), Logits::kLast));
      rows.emplace_back(session.logits().begin(), session.logits().end());
    }
    return rows;
  }

  static Model* model_;
  static std::vector<TokenId>* tokens_;
};
Model* IndexSession::model_ = nullptr;
std::vector<TokenId>* IndexSession::tokens_ = nullptr;

TEST_F(IndexSession, ReadsAllRowsBelowItsMinimum) {
  Session session = open_session(*model_, 512);
  ContextMemory memory = fold(session, "full+topk(k=64,min=1456)");
  decode(session, memory, 10);  // at 1,450 to 1,459 tokens
  const ReadStatistics reads = session.take_read_statistics();
  EXPECT_EQ(reads.reads, 10 * 30 * 9);
  EXPECT_EQ(reads.unindexed, 6 * 30 * 9);  // the seventh finds a memory of 1,456
  EXPECT_EQ(reads.dense, reads.unindexed);
}

TEST_F(IndexSession, IsCloseToExactAndReadsLess) {
  Session session = open_session(*model_, 512);
  ContextMemory exact = fold(session, "full");
  const auto expected = decode(session, exact);
  EXPECT_EQ(session.take_read_statistics().reads, 0);  // a spec without an index counts nothing
  ContextMemory memory = fold(session, kSpec);
  const auto found = decode(session, memory);
  const ReadStatistics reads = session.take_read_statistics();
  double kl = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i)
    kl += kl_divergence(expected[i], found[i]) / static_cast<double>(found.size());
  // Q4_1 weights turn the smallest difference into about 3e-3 (docs/numerics.md).
  EXPECT_LT(kl, 2e-2);
  EXPECT_GT(kl, 0.0);
  EXPECT_EQ(reads.reads, static_cast<std::int64_t>(found.size()) * 30 * 9);
  EXPECT_EQ(reads.dense, 0);
  EXPECT_EQ(reads.certified, 0);
  EXPECT_LT(static_cast<double>(reads.bytes_read), 0.45 * static_cast<double>(reads.bytes_dense));
}

TEST_F(IndexSession, TheTailIsWorthReading) {
  Session session = open_session(*model_, 512);
  ContextMemory exact = fold(session, "full");
  const auto expected = decode(session, exact, 20);
  const auto kl_of = [&](const std::string& text) {
    ContextMemory memory = fold(session, text);
    const auto found = decode(session, memory, 20);
    double kl = 0.0;
    for (std::size_t i = 0; i < found.size(); ++i) kl += kl_divergence(expected[i], found[i]) / 20;
    return kl;
  };
  // What is left of the first is the noise of Q4_1 weights.
  EXPECT_LT(kl_of(kSpec), 0.5 * kl_of("full+topk(k=128,tail=none)"));
}

TEST_F(IndexSession, CertifiedReadsStayWithinTheirLimit) {
  Session session = open_session(*model_, 512);
  ContextMemory memory = fold(session, "full+topk(max_error=0.05,cert=exact)");
  decode(session, memory, 10);
  const ReadStatistics reads = session.take_read_statistics();
  EXPECT_EQ(reads.reads, 10 * 30 * 9);
  EXPECT_EQ(reads.certified, reads.reads);
  EXPECT_LE(reads.worst_bound, 0.05);
  EXPECT_GT(reads.worst_bound, 0.0);
  EXPECT_LT(reads.dense, reads.reads / 2);
}

TEST_F(IndexSession, AuditedReadsKeepWhatTheyPromise) {
  SessionOptions options;
  options.n_threads = 2;
  options.audit_reads = true;
  Session session = require(Session::create(*model_, options));
  for (const char* text :
       {"full+topk(max_error=0.05,cert=exact)", "full+topk(max_error=0.05,cert=dither)",
        "full+topk(k=128)", "full+topk(k=128,anchor=block)"}) {
    SCOPED_TRACE(text);
    ContextMemory memory = fold(session, text);
    decode(session, memory, 6);
    const ReadStatistics reads = session.take_read_statistics();
    EXPECT_EQ(reads.audited, 6 * 30 * 9);
    EXPECT_EQ(reads.violations, 0);
    EXPECT_GT(reads.worst_variation, 0.0);
    // Real keys and queries: about .01 is what other programs measured.
    EXPECT_LT(reads.sum_variation / static_cast<double>(reads.audited), 0.02);
    EXPECT_LT(reads.sum_output_error / static_cast<double>(reads.audited), 0.03);
    if (spec(text).topk->max_error) {
      EXPECT_LE(reads.worst_variation, 0.05);
    }
  }
}

TEST_F(IndexSession, CodesTakeAQuarterOfTheRowsOrHalfWithNorms) {
  Session session = open_session(*model_, 512);
  // All that an index needs in RAM once it is made, against the rows it codes.
  for (const auto& [text, most] : {std::pair{kSpec, 0.25},
                                   {"full+topk(max_error=0.05,cert=dither)", 0.40},
                                   {"full+topk(max_error=0.05,cert=exact)", 0.50}}) {
    ContextMemory memory = fold(session, text);
    require(session.prepare_index(memory));
    const auto rows = static_cast<double>(memory.row_bytes_used());
    const auto codes =
        static_cast<double>(memory.index()->code_bytes() + memory.index()->query_bytes());
    EXPECT_GT(codes, 0.15 * rows);
    EXPECT_LE(codes, most * rows) << text;
  }
}

TEST_F(IndexSession, ShortMemoriesAndNamedLayersAreExact) {
  Session session = open_session(*model_, 512);
  const auto run = [&](const std::string& text, std::size_t n) {
    ContextMemory memory = require(session.begin(spec(text)));
    if (n > 0) require(session.step(memory, std::span(*tokens_).first(n), Logits::kNone));
    require(session.step(memory, std::span(*tokens_).subspan(n, 1), Logits::kLast));
    return std::vector<float>(session.logits().begin(), session.logits().end());
  };
  for (const std::size_t n : {0, 1, 63, 64, 65, 700}) EXPECT_EQ(run(kSpec, n), run("full", n)) << n;
  EXPECT_EQ(run("full+topk(k=64)+dense_layers=0-29", 1400), run("full", 1400));
  EXPECT_NE(run("full+topk(k=64)+dense_layers=0-28", 1400), run("full", 1400));
}

// Codes that are older than the memory is long: of a memory that was cut back, or another text's.
TEST_F(IndexSession, OldCodesLeaveShortMemoriesExact) {
  Session session = open_session(*model_, 512);
  ContextMemory indexed = fold(session, kSpec);
  require(session.prepare_index(indexed));
  ContextMemory exact = fold(session, "full");
  for (const std::int64_t n : {1000, 65, 64, 63, 1, 0}) {
    const auto next = std::span(*tokens_).subspan(static_cast<std::size_t>(n), 1);
    ContextMemory adopted = require(session.begin(spec(kSpec)));
    require(adopted.adopt_codes(indexed));
    if (n > 0) {
      require(session.step(adopted, std::span(*tokens_).first(static_cast<std::size_t>(n)),
                           Logits::kNone));
    }
    std::vector<std::vector<float>> found;
    for (ContextMemory* whole : {&exact, &indexed}) {
      ContextMemory memory = whole->clone();
      require(memory.truncate(n));
      require(session.step(memory, next, Logits::kLast));
      found.push_back(test::copy(session.logits()));
    }
    require(session.step(adopted, next, Logits::kLast));
    EXPECT_EQ(found[1], found[0]) << n;
    EXPECT_EQ(test::copy(session.logits()), found[0]) << n;
  }
}

TEST_F(IndexSession, SaveLoadContinueIsBitEqual) {
  Session session = open_session(*model_, 512);
  ContextMemory memory = fold(session, kSpec);
  require(session.prepare_index(memory));
  MemoryRecord record;
  record.spec = kSpec;
  record.tokens.assign(document().begin(), document().end());
  record.ranges.resize(kDocument);
  const TemporaryFolder folder;
  require(save_memory(folder / "a.vmem", record, memory));
  const auto expected = decode(session, memory);

  MemoryFile file = require(MemoryFile::open(folder / "a.vmem"));
  require(file.verify_rows());
  ContextMemory restored = require(file.restore());
  Session other = open_session(*model_, 256);
  EXPECT_EQ(decode(other, restored), expected);
}

TEST_F(IndexSession, BranchesAndTakenBackTokensChangeNothing) {
  Session session = open_session(*model_, 512);
  ContextMemory memory = fold(session, kSpec);
  require(session.prepare_index(memory));
  ContextMemory branch = memory.clone();
  const auto expected = decode(session, memory);
  require(session.step(branch, std::span(*tokens_).first(200), Logits::kNone));  // another text
  require(branch.truncate(static_cast<std::int64_t>(kDocument)));
  EXPECT_EQ(decode(session, branch), expected);
  // A memory that is decoded together with another has the same rows as alone.
  require(memory.truncate(static_cast<std::int64_t>(kDocument)));
  EXPECT_EQ(decode(session, memory), expected);
}

TEST_F(IndexSession, ReadingIsExactInPiecesOfAnySize) {
  // Rows of a text that is only read must not depend on the index, not even those of a short rest.
  Session session = open_session(*model_, 512);
  ContextMemory exact = fold(session, "full");
  ContextMemory memory = fold(session, kSpec);
  require(session.prepare_index(memory));
  for (ContextMemory* m : {&exact, &memory})
    require(session.step(*m, std::span(*tokens_).subspan(kDocument, 5), Logits::kNone));
  const LayerIndex last(29);
  const KeyValueSegment a = exact.segments(last).back();
  const KeyValueSegment b = memory.segments(last).back();
  const auto rows = static_cast<std::size_t>(a.n_rows) * row_bytes(ElementType::kF16, 64);
  ASSERT_EQ(a.n_rows, b.n_rows);
  EXPECT_TRUE(std::equal(a.v, a.v + rows, b.v));
}

TEST_F(IndexSession, WhatContradictsTheModelOrTheModeIsRefusedEarly) {
  Session session = open_session(*model_, 512, true);
  ContextMemory memory = require(session.begin(spec(kSpec)));
  const Status stepped = session.step(memory, document(), Logits::kNone);
  ASSERT_FALSE(stepped.ok());
  EXPECT_NE(stepped.error().message.find("deterministic"), std::string::npos);
  EXPECT_FALSE(session.begin(spec("full+topk(k=64,rank=128)")).ok());
  EXPECT_FALSE(session.begin(spec("full+topk(k=64)+dense_layers=0-30")).ok());
}

TEST(IndexRetrieval, TheWiredRetrieverFindsEverything) {
  const Model model = load_model(kWired);
  SessionOptions options;
  options.n_threads = 1;
  options.n_ubatch = 128;
  Session session = require(Session::create(model, options));
  NeedleOptions needle;
  needle.tokens = 4096;
  needle.chunk = 32;
  needle.distances = {1, 16, 64, 126};
  needle.trials = 2;
  const auto result = require(run_needle(model, session, spec("full+topk(k=64)"), needle, {}));
  for (const NeedleRow& row : result.rows) EXPECT_EQ(row.correct, row.trials) << row.distance;
  const ReadStatistics reads = session.take_read_statistics();
  EXPECT_LT(reads.rows_read, reads.rows_seen / 4);  // the index was used
}

}  // namespace
}  // namespace volvelle::test
