// Edits of real keys against the bounds of what they can change: nothing exceeds them, on every
// path and at every distance, and the audit sees bounds that are broken on purpose.
#include "eval/edit_study.hpp"

#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

EditStudy study_of(const std::string& model_name, const std::string& book, std::size_t n,
                   const std::string& spec) {
  const Model model = load_model(model_name);
  EditStudyOptions options;
  options.queries = 2;
  options.turns = 1;
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
}

TEST(EditStudy, HoldsOnAModelWhoseQueriesTheWeightsBound) {
  const EditStudy study = study_of(kSmolF32, "emma.txt", 512, "full");
  expect_sound(study);
  EXPECT_TRUE(study.notes.empty());
}

TEST(EditStudy, HoldsOnAModelThatNormalisesQueries) {
  expect_sound(study_of(kGemmaF32, "persuasion.txt", 1024, "sink(4)+window(256)"));
}

TEST(EditStudy, RefusesTooLittle) {
  const Model model = load_model(kWired);
  const std::vector<TokenId> few(100, 1);
  EXPECT_FALSE(run_edit_study(model, few, MemorySpec::full_memory(), {}, {}).ok());
}

}  // namespace
}  // namespace volvelle::test
