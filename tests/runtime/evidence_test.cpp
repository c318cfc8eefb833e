// Evidence through the whole stack: the passage that attention went to is the one that holds the
// fact asked for.
//
// On the wired retriever that is so by construction. On SmolLM2 it was found by experiment: 24
// facts in windows of six novels chose the formula, 16 other facts (all right) and 16 at the very
// beginning or end of the text tested it; so was Gemma 3 (16 of 16). Six facts in one document are
// harder than that, since each is a distractor of the others.
#include "volvelle/memory/evidence.hpp"

#include <algorithm>
#include <optional>

#include "runtime/support.hpp"
#include "volvelle/runtime/chat_format.hpp"
#include "volvelle/runtime/generate.hpp"

namespace volvelle::test {
namespace {

struct Document {
  ContextMemory memory;
  DocumentTokens tokens;
  std::string text;
  ChatFormat format;
};

Document read_document(Session& session, std::string text) {
  const Model& model = session.model();
  Document document{require(session.begin(MemorySpec::full_memory())),
                    {},
                    std::move(text),
                    require(make_chat_format(model, default_chat_format(model)))};
  document.tokens = require(tokenize_document(model.tokenizer(), document.format, document.text));
  require(session.step(document.memory, document.tokens.tokens, Logits::kNone));
  return document;
}

/// Passages that the question and a short answer attended to, found as the program does.
std::vector<Passage> evidence_for(Session& session, const Document& document,
                                  const std::string& question, std::int64_t count) {
  const Model& model = session.model();
  const DocumentTokens conversation =
      require(tokenize_conversation(model.tokenizer(), document.format, document.text, question));
  const auto end = std::mismatch(document.tokens.tokens.begin(), document.tokens.tokens.end(),
                                 conversation.tokens.begin(), conversation.tokens.end());
  const std::ptrdiff_t cached = end.first - document.tokens.tokens.begin();
  ContextMemory memory = document.memory.clone();
  require(memory.truncate(cached));
  const std::int64_t begin = document.tokens.text_begin_token;
  EvidenceCollector collector = require(EvidenceCollector::create(memory, begin, cached));
  session.set_observer(
      [&](LayerIndex layer, const AttendTask& task) { collector.observe(layer, task); });
  Sampler sampler = require(Sampler::create(model, {}));
  const std::span<const TokenId> prompt =
      std::span(conversation.tokens).subspan(static_cast<std::size_t>(cached));
  require(generate(session, memory, {prompt, 8, {}}, sampler));
  session.set_observer(nullptr);
  require(collector.status());
  return find_passages(
      collector.scores(),
      std::span(document.tokens.ranges)
          .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(cached - begin)),
      document.text, count);
}

std::string text_of(const Document& document, const Passage& passage) {
  return document.text.substr(static_cast<std::size_t>(passage.range.begin),
                              static_cast<std::size_t>(passage.range.end - passage.range.begin));
}

TEST(Evidence, WiredRetrieverPointsAtTheRightFact) {
  const Model model = load_model(kWired);
  Session session = open_session(model, 256);
  const std::vector<std::pair<std::string, std::string>> facts = {
      {"k17", "v42"}, {"k05", "v11"}, {"k40", "v63"}, {"k63", "v00"}, {"k00", "v07"}};
  std::string text = "f00";
  for (int i = 0; i < 2500; ++i) {
    if (i % 500 == 50) {
      const auto& [key, value] = facts[static_cast<std::size_t>(i / 500)];
      text.append(" ").append(key).append(" ").append(value);
    }
    text += " f" + std::to_string(10 + i * 7 % 22);
  }
  const Document document = read_document(session, text);
  for (const auto& [key, value] : facts) {
    const auto passages = evidence_for(session, document, key, 1);
    ASSERT_EQ(passages.size(), 1u) << key;
    const std::string found = text_of(document, passages[0]);
    EXPECT_NE(found.find(std::string(key).append(" ").append(value)), std::string::npos) << found;
    EXPECT_LT(found.size(), 700u);  // of 10,000
    EXPECT_GT(passages[0].weight, 0.9);
  }
}

struct PlantedFact {
  const char* sentence;
  const char* question;
};
constexpr PlantedFact kFacts[] = {
    {"Captain Orme's ship, the Dancing Marten, carried a cargo of blue porcelain.",
     "What cargo did the Dancing Marten carry?"},
    {"The password for the eastern gate is copper lantern.",
     "What is the password for the eastern gate?"},
    {"It was agreed that the rent of Mill Cottage should be paid in honey.",
     "How should the rent of Mill Cottage be paid?"},
    {"Professor Lindqvist discovered the comet while repairing her kitchen roof.",
     "What was Professor Lindqvist doing when she discovered the comet?"},
    {"The magic number for obsidian is 48213.", "What is the magic number for obsidian?"},
    {"Nobody but the gardener knows that the key to the chapel hangs behind the beehives.",
     "Where does the key to the chapel hang?"},
};

/// `bytes` of a novel with a fact in each sixth of it, at the end of some sentence.
std::string novel_with_facts(const std::string& name, std::size_t begin, std::size_t bytes) {
  const std::string novel = require(read_text_file(require(find_input(name, "texts"))));
  std::string text;
  for (std::size_t i = 0; i < std::size(kFacts); ++i) {
    const std::size_t end = novel.find(". ", begin + bytes / std::size(kFacts)) + 2;
    text.append(novel, begin, end - begin).append(kFacts[i].sentence).append(" ");
    begin = end;
  }
  return text.append(novel, begin, novel.find(". ", begin) + 1 - begin);
}

class EvidenceOf : public testing::TestWithParam<const char*> {};

TEST_P(EvidenceOf, PlantedFactsInANovel) {
  const Model model = load_model(GetParam());
  Session session = open_session(model, 512);
  const Document document =
      read_document(session, novel_with_facts("persuasion.txt", 100000, 8600));
  EXPECT_GT(document.tokens.tokens.size(), 2000u);
  for (const PlantedFact& fact : kFacts) {
    const auto passages = evidence_for(session, document, fact.question, 3);
    ASSERT_FALSE(passages.empty());
    EXPECT_NE(text_of(document, passages[0]).find(fact.sentence), std::string::npos)
        << text_of(document, passages[0]);
    EXPECT_LT(passages[0].range.end - passages[0].range.begin, 600);
    std::printf("  %.2f %s\n", passages[0].weight, fact.sentence);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EvidenceOf, testing::Values(kSmolQ41, kSmolF32),
                         [](const auto& model) {
                           return std::string(model.param) == kSmolQ41 ? "SmolQ41" : "SmolF32";
                         });

}  // namespace
}  // namespace volvelle::test
