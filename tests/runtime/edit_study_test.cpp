// Edits of real keys against the bounds of what they can change: nothing exceeds them, on every
// path and at every distance, and the audit sees bounds that are broken on purpose.
#include "eval/edit_study.hpp"

#include <algorithm>

#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

EditStudy study_of(const std::string& model_name, const std::string& book, std::size_t n,
                   const std::string& spec) {
  const Model model = load_model(model_name);
  EditStudyOptions options;
  options.queries = 2;
  options.turns = 1;  // at their own positions queries can not show bands that are paired wrongly
  options.session.n_threads = 2;
  return require(run_edit_study(model, book_tokens(model, book, n),
                                require(parse_memory_spec(spec)), options, {}));
}

void expect_sound(const EditStudy& study) {
  std::int64_t n = 0;
  for (const EditStudyRow& row : study.rows) {
    EXPECT_EQ(row.found.ratios.all.violations, 0) << row.edit << ' ' << row.path;
    EXPECT_GT(row.found.ratios.all.largest, 0.0) << row.edit << ' ' << row.path;
    n += row.found.ratios.all.n;
  }
  EXPECT_GT(n, 400000);
  for (const EditControl& control : study.controls)
    EXPECT_GT(control.found.violations, 0) << control.name;
  for (const WeightStudyRow& row : study.weights) {
    EXPECT_EQ(row.found.violations, 0) << row.edit;
    EXPECT_GT(row.mean_variation, 0.0) << row.edit;
    EXPECT_LE(row.mean_bound, 1.0) << row.edit;
    EXPECT_EQ(row.outputs.n, row.found.n);
    EXPECT_EQ(row.outputs.violations, 0) << row.edit;
    EXPECT_GT(row.outputs.largest, 0.0) << row.edit;
    EXPECT_GT(row.layers.n, 0) << row.edit;
    EXPECT_EQ(row.layers.violations, 0) << row.edit;
    EXPECT_GT(row.layers.largest, 0.0) << row.edit;
  }
  EXPECT_EQ(study.from_weights.violations, 0);
  EXPECT_GT(study.from_weights.largest, 0.001);
  EXPECT_EQ(study.query_lengths.violations, 0);
  // Keys that were shifted moved as far as was known before, and no farther.
  EXPECT_GT(study.shifted_bands.n, 10000);
  EXPECT_EQ(study.shifted_bands.violations, 0);
  EXPECT_GT(study.shifted_bands.largest, 0.99);
}

TEST(EditStudy, HoldsOnAModelWhoseQueriesTheWeightsBound) {
  const EditStudy study = study_of(kSmolF32, "emma.txt", 512, "full+kv(k=q4_0,v=q8_0)");
  expect_sound(study);
  EXPECT_TRUE(study.notes.empty());
}

TEST(EditStudy, HoldsOnAModelThatNormalisesQueries) {
  expect_sound(
      study_of(kGemmaF32, "persuasion.txt", 1024, "sink(4)+window(256)+kv(k=q8_0,v=q4_0)"));
}

const WeightStudyRow& weights_of(const EditStudy& study, const std::string& edit) {
  const auto found = std::find_if(study.weights.begin(), study.weights.end(),
                                  [&](const WeightStudyRow& row) { return row.edit == edit; });
  if (found == study.weights.end()) throw std::runtime_error("no edit " + edit);
  return *found;
}

TEST(EditStudy, AuditsWhatAMemoryKeeps) {
  const EditStudy stored = study_of(kGemmaF32, "emma.txt", 1030, "full+kv(k=q4_0,v=q4_0)");
  // The same storage, on its own and as the spec's; values are edited in addition.
  EXPECT_EQ(weights_of(stored, "memory").mean_variation, weights_of(stored, "q4_0").mean_variation);
  EXPECT_NE(weights_of(stored, "memory").outputs.sum, weights_of(stored, "q4_0").outputs.sum);
  for (const char* spec :
       {"full+topk(k=64,anchor=block)", "full+topk(max_error=0.1,cert=dither)+dense_layers=0-5"}) {
    const EditStudy coded = study_of(kGemmaF32, "emma.txt", 1030, spec);
    expect_sound(coded);
    // Codes of three bits, and of five, lie between rows of sixteen and a quarter of the
    // coordinates.
    EXPECT_GT(weights_of(coded, "memory").mean_variation, 0.001);
    EXPECT_LT(weights_of(coded, "memory").mean_variation,
              weights_of(stored, "low_rank").mean_variation);
  }
}

TEST(EditStudy, AnIndexNeedsItsTokens) {
  const Model model = load_model(kWired);
  const auto found =
      run_edit_study(model, std::vector<TokenId>(1000, 1),
                     require(parse_memory_spec("full+topk(k=64)")), EditStudyOptions(), {});
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message.find("from 1024 tokens"), std::string::npos);
}

TEST(EditStudy, RefusesTooLittle) {
  const Model model = load_model(kWired);
  const std::vector<TokenId> few(100, 1);
  EXPECT_FALSE(run_edit_study(model, few, MemorySpec::full_memory(), {}, {}).ok());
}

}  // namespace
}  // namespace volvelle::test
