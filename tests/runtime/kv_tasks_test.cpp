// Documents of the key-value tasks: of the asked length, with the answers in them, the same every
// time; and how answers are counted.
#include "volvelle/eval/kv_tasks.hpp"

#include <map>
#include <set>
#include <sstream>

#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

class KvTasks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new Model(load_model(kSmolQ41)); }
  static void TearDownTestSuite() { delete model_; }
  static KvDocument make(KvTask task, std::int64_t tokens, std::int64_t trial = 0) {
    KvTaskOptions options;
    options.tokens = tokens;
    return require(make_kv_document(task, model_->tokenizer(), options, trial));
  }
  static Model* model_;
};
Model* KvTasks::model_ = nullptr;

TEST_F(KvTasks, DocumentsFillTheTokensAndHoldTheAnswers) {
  for (const KvTask task : all_kv_tasks()) {
    for (const std::int64_t tokens : {400, 3000}) {
      SCOPED_TRACE(std::string(to_string(task)) + " " + std::to_string(tokens));
      const KvDocument document = make(task, tokens);
      const auto n = std::ssize(require(model_->tokenizer().tokenize(document.text, {})).tokens);
      EXPECT_LE(n, tokens);
      EXPECT_GE(n, tokens * 9 / 10);
      ASSERT_FALSE(document.questions.empty());
      for (const KvQuestion& question : document.questions) {
        EXPECT_EQ(kv_score(question, document.text), 1.0) << question.text;
        EXPECT_GE(question.n_predict, 8);
      }
      EXPECT_EQ(make(task, tokens).text, document.text);
      EXPECT_NE(make(task, tokens, 1).text, document.text);
    }
  }
}

TEST_F(KvTasks, TheCommonAndTheFrequentWordsAreWhatIsAskedFor) {
  for (const KvTask task : {KvTask::kCommonWords, KvTask::kFrequentWords}) {
    const KvDocument document = make(task, 3000);
    std::map<std::string, int> counts;
    std::string text = document.text.substr(document.text.find('\n'));
    for (char& c : text) c = c >= 'a' && c <= 'z' ? c : ' ';
    std::istringstream words(text);
    for (std::string word; words >> word;) ++counts[word];
    const std::vector<std::string>& answers = document.questions[0].answers;
    int least = 1 << 30;
    for (const std::string& answer : answers) least = std::min(least, counts[answer]);
    for (const auto& [word, count] : counts) {
      const bool is_answer = std::find(answers.begin(), answers.end(), word) != answers.end();
      if (!is_answer) {
        EXPECT_LT(count, least) << word;
      }
    }
  }
}

TEST_F(KvTasks, ReferencesPointBackwardsAndLeadToTheValue) {
  const KvDocument document = make(KvTask::kMultiHop, 2000);
  const std::string value = document.questions[0].text.substr(31, 5);
  std::map<std::string, std::string> values;
  std::istringstream lines(document.text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("VAR ")) continue;
    const std::string name = line.substr(4, line.find(' ', 4) - 4);
    std::string right = line.substr(line.find("= ") + 2);
    right.pop_back();
    values[name] = right.starts_with("VAR ") ? values.at(right.substr(4)) : right;
  }
  std::set<std::string> found;
  for (const auto& [name, of] : values) {
    if (of == value) found.insert(name);
  }
  const std::vector<std::string>& answers = document.questions[0].answers;
  EXPECT_EQ(found, std::set<std::string>(answers.begin(), answers.end()));
  EXPECT_EQ(values.size(), 15U);
}

TEST(KvScore, CountsWholeWords) {
  const KvQuestion question{"?", {"cat", "12345"}, 8};
  EXPECT_EQ(kv_score(question, "a cat, 12345."), 1.0);
  EXPECT_EQ(kv_score(question, "cats 123456"), 0.0);
  EXPECT_EQ(kv_score(question, "12345cat cat"), 0.5);
  EXPECT_EQ(kv_score(question, ""), 0.0);
  EXPECT_EQ(kv_score({"?", {}, 8}, "x"), 0.0);
}

}  // namespace
}  // namespace volvelle::test
