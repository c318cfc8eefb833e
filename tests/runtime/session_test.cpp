// Sessions: saving and restoring, branching, cancelling, limits, damaged numbers.
#include <algorithm>
#include <cstring>
#include <fstream>

#include "runtime/support.hpp"
#include "volvelle/attention/fold.hpp"
#include "volvelle/io/gguf.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::test {
namespace {

MemoryRecord record_of(std::span<const TokenId> tokens) {
  MemoryRecord record;
  record.spec = "full";
  record.model_fingerprint = "test";
  record.tokens.assign(tokens.begin(), tokens.end());
  record.ranges.resize(tokens.size());
  return record;
}

TEST(Session, SaveLoadContinueIsBitEqualToNotHavingSaved) {
  const Model model = load_model(kSmolQ41);
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", 340);
  const std::span<const TokenId> document(tokens.data(), 300);
  const std::span<const TokenId> question(tokens.data() + 300, 37);
  const TemporaryFolder folder;

  Session session = open_session(model, 256);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, document, Logits::kNone));
  require(save_memory(folder / "a.vmem", record_of(document), memory));
  const auto go_on = [&](Session& s, ContextMemory& m) {
    std::vector<std::vector<float>> rows;
    require(s.step(m, question, Logits::kLast));
    rows.push_back(copy(s.logits()));
    for (std::size_t i = 337; i < tokens.size(); ++i) {  // decode one by one
      require(s.step(m, std::span(&tokens[i], 1), Logits::kLast));
      rows.push_back(copy(s.logits()));
    }
    return rows;
  };
  const auto expected = go_on(session, memory);

  MemoryFile file = require(MemoryFile::open(folder / "a.vmem"));
  require(file.verify_rows());
  ContextMemory restored = require(file.restore());
  Session other = open_session(model, 256);
  EXPECT_EQ(go_on(other, restored), expected);
}

TEST(Session, WritingIntoTheFileWhileFoldingGivesTheSameMemory) {
  const Model model = load_model(kWired);
  const std::vector<TokenId> tokens =
      require(
          model.tokenizer().tokenize("f01 k05 v07 f02 k11 v13 f03 f04 f05", {.add_special = true}))
          .tokens;
  const TemporaryFolder folder;
  Session session = open_session(model, 4);
  std::vector<Position> positions;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    positions.emplace_back(static_cast<std::int64_t>(i));
  {
    MemoryFileWriter writer = require(MemoryFileWriter::create(folder / "a.vmem", record_of(tokens),
                                                               session.layout(), {positions}));
    ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
    require(memory.write_into(0, writer.rows()));
    require(session.step(memory, tokens, Logits::kNone));
    require(writer.finish());
  }
  ContextMemory in_ram = require(session.begin(MemorySpec::full_memory()));
  require(session.step(in_ram, tokens, Logits::kNone));
  require(save_memory(folder / "b.vmem", record_of(tokens), in_ram));
  EXPECT_EQ(require(read_text_file(folder / "a.vmem")), require(read_text_file(folder / "b.vmem")));

  MemoryFile file = require(MemoryFile::open(folder / "a.vmem"));
  require(file.verify_rows());
  ContextMemory memory = require(file.restore());
  const TokenId key = require(model.tokenizer().tokenize("k11", {})).tokens.front();
  require(session.step(memory, std::span(&key, 1), Logits::kLast));
  const auto row = session.logits();
  const auto best = static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
  EXPECT_EQ(model.tokenizer().piece(best), " v13");
}

TEST(Session, BranchesShareRowsAndDoNotDisturbEachOther) {
  const Model model = load_model(kWired);
  const auto tokens_of = [&](const std::string& text) {
    return require(model.tokenizer().tokenize(text, {})).tokens;
  };
  Session session = open_session(model, 64);
  ContextMemory trunk = require(session.begin(MemorySpec::full_memory()));
  require(session.step(
      trunk, require(model.tokenizer().tokenize("f00 k01 v01 f02", {.add_special = true})).tokens,
      Logits::kNone));
  ContextMemory left = trunk.clone();
  ContextMemory right = trunk.clone();
  require(session.step(left, tokens_of("k02 v22 f03"), Logits::kNone));
  require(session.step(right, tokens_of("k02 v33 f03"), Logits::kNone));
  const auto answer = [&](ContextMemory& memory, const std::string& key) {
    ContextMemory branch = memory.clone();
    require(session.step(branch, tokens_of(key), Logits::kLast));
    const auto row = session.logits();
    return model.tokenizer().piece(
        static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
  };
  EXPECT_EQ(answer(left, "k02"), " v22");
  EXPECT_EQ(answer(right, "k02"), " v33");
  EXPECT_EQ(answer(trunk, "k02"), " none");
  EXPECT_EQ(answer(left, "k01"), " v01");
  require(right.truncate(trunk.length()));
  EXPECT_EQ(answer(right, "k02"), " none");
}

TEST(Session, CancelLeavesTheMemoryUsable) {
  const Model model = load_model(kWired);
  SessionOptions options;
  options.n_ubatch = 16;
  options.n_threads = 1;
  int graphs = 0;
  CancelToken cancel;
  options.cancel = cancel;
  options.capture = [&](const CapturedRows& rows) {  // stop inside the third graph
    if (rows.kind == CapturedRows::Kind::kKey && rows.layer == LayerIndex(0) && ++graphs == 3)
      cancel.cancel();
  };
  Session session = require(Session::create(model, options));
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  const std::vector<TokenId> tokens(100, 6);
  const Status status = session.step(memory, tokens, Logits::kLast);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(memory.length(), 32);
  EXPECT_EQ(memory.groups().front().store().n_rows(), 32);

  Session again = open_session(model, 16);
  require(again.step(memory, std::span(tokens).subspan(32), Logits::kLast));
  EXPECT_EQ(memory.length(), 100);
}

TEST(Session, RefusesToGoBeyondTheContextAndSaysBothNumbers) {
  const Model model = load_model(kSmolQ41);
  Session session = open_session(model, 256);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  const std::vector<TokenId> tokens(8193, 5);
  const Status status = session.step(memory, tokens, Logits::kNone);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kContextExceeded);
  EXPECT_NE(status.error().message.find("8193"), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find("8192"), std::string::npos) << status.error().message;
  EXPECT_EQ(memory.length(), 0);
}

TEST(Session, RefusesATokenThatTheModelDoesNotHave) {
  const Model model = load_model(kWired);
  Session session = open_session(model, 64);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  const std::vector<TokenId> tokens{0, 6, 165};
  EXPECT_EQ(session.step(memory, tokens, Logits::kNone).error().code, ErrorCode::kInvalidArgument);
}

TEST(Session, EngineCacheStaysAtOneUbatch) {
  const Model model = load_model(kWired);
  Session session = open_session(model, 512);
  EXPECT_EQ(session.engine_context_tokens(), 512);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  require(session.step(memory, std::vector<TokenId>(3000, 7), Logits::kNone));
  EXPECT_EQ(session.engine_context_tokens(), 512);
  EXPECT_EQ(memory.length(), 3000);
}

TEST(Session, WindowMemoryKeepsFewRows) {
  const Model model = load_model(kWired);
  Session session = open_session(model, 128);
  ContextMemory memory = require(session.begin(require(parse_memory_spec("sink(4)+window(512)"))));
  require(session.step(memory, std::vector<TokenId>(20000, 7), Logits::kNone));
  EXPECT_EQ(memory.length(), 20000);
  // At most the sink's block, the window's blocks and the one being written stay.
  EXPECT_LE(memory.groups().front().store().reserved_bytes(),
            4 * KvStore::kBlockRows * memory.layout().bytes_per_token());
}

/// A copy of the wired retriever with the first number of a tensor replaced by NaN.
std::filesystem::path poisoned_model(const TemporaryFolder& folder,
                                     const std::string& tensor_name) {
  const std::filesystem::path source = require(find_input(kWired, "models"));
  std::string bytes = require(read_text_file(source));
  const GgufFile file = require(read_gguf(source));
  for (const GgufTensor& tensor : file.tensors) {
    if (tensor.name != tensor_name) continue;
    const std::uint16_t nan = 0x7E00;  // f16
    std::memcpy(bytes.data() + tensor.offset, &nan, sizeof nan);
  }
  std::ofstream(folder / "nan.gguf", std::ios::binary) << bytes;
  return folder / "nan.gguf";
}

class NotANumber : public testing::TestWithParam<const char*> {};

TEST_P(NotANumber, IsAnErrorAndNotAToken) {
  const TemporaryFolder folder;
  const Model model = require(Model::load(poisoned_model(folder, GetParam()), {}));
  Session session = open_session(model, 64);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  const Status status = session.step(memory, std::vector<TokenId>{0, 6, 7}, Logits::kLast);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNumeric);
  EXPECT_EQ(memory.length(), 0);
}

// In attention, and behind it.
INSTANTIATE_TEST_SUITE_P(Weights, NotANumber,
                         testing::Values("blk.0.attn_v.weight", "blk.1.attn_q.weight",
                                         "output.weight"));

}  // namespace
}  // namespace volvelle::test
