// Memory laws of the fold: in RAM the resident set grows by the rows (2 L G D bytes T) and by
// nothing else; with rows in a mapped file the anonymous part stays flat (the file's pages are page
// cache and can be dropped by the system at any time).
#include <fstream>

#include "runtime/support.hpp"
#include "volvelle/attention/fold.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::test {
namespace {

/// RssAnon of this process in bytes.
std::int64_t anonymous_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  throw std::runtime_error("no RssAnon in /proc/self/status");
}

constexpr std::size_t kWarmUp = 512;
constexpr std::size_t kTokens = 2560;
// Other heap use that comes and goes while a graph runs: the engine's batch lists, page tables. Far
// below the rows' 47 MB.
constexpr std::int64_t kSlack = 3 << 20;

struct Growth {
  std::int64_t measured = 0;
  std::int64_t rows = 0;
};

Growth fold_growth(const Model& model, Session& session, ContextMemory& memory) {
  const std::vector<TokenId> tokens = book_tokens(model, "emma.txt", kTokens);
  require(session.step(memory, std::span(tokens).first(kWarmUp), Logits::kNone));
  const std::int64_t before = anonymous_resident_bytes();
  require(session.step(memory, std::span(tokens).subspan(kWarmUp), Logits::kNone));
  return {anonymous_resident_bytes() - before,
          static_cast<std::int64_t>((kTokens - kWarmUp) * memory.layout().bytes_per_token())};
}

TEST(ResidentMemory, GrowsByTheRowsOnly) {
  const Model model = load_model(kSmolQ41);
  Session session = open_session(model, 256);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  EXPECT_EQ(memory.layout().bytes_per_token(), 2u * 30 * 3 * 64 * 2);  // 2 L G D bytes
  const Growth growth = fold_growth(model, session, memory);
  // Rows are resident by whole pages: at most one more page per layer, K or V, and KV head.
  const std::int64_t page_rounding = 2 * 30 * 3 * 4096;
  EXPECT_GE(growth.measured, growth.rows - page_rounding);
  EXPECT_LE(growth.measured, growth.rows + page_rounding + kSlack);
}

TEST(ResidentMemory, StaysFlatWhenRowsGoToAFile) {
  const Model model = load_model(kSmolQ41);
  const TemporaryFolder folder;
  Session session = open_session(model, 256);
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  MemoryRecord record;
  record.spec = "full";
  record.tokens.resize(kTokens);
  record.ranges.resize(kTokens);
  std::vector<Position> positions;
  for (std::size_t i = 0; i < kTokens; ++i) positions.emplace_back(static_cast<std::int64_t>(i));
  MemoryFileWriter writer =
      require(MemoryFileWriter::create(folder / "a.vmem", record, session.layout(), {positions}));
  require(memory.write_into(0, writer.rows()));
  EXPECT_LE(fold_growth(model, session, memory).measured, kSlack);
}

}  // namespace
}  // namespace volvelle::test
