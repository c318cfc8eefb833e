// Codes of few coordinates on real keys and queries: the recalls that an independent program
// (NumPy, float64) found on the same model and texts, and the orders that the theory gives.
#include "eval/index_study.hpp"

#include <map>
#include <stdexcept>

#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

const IndexStudyRow& row_of(const std::vector<IndexStudyRow>& rows, const std::string& codec,
                            int rank, std::int64_t n = 4092) {
  for (const IndexStudyRow& row : rows) {
    if (row.codec == codec && row.rank == rank && row.calibration == n) return row;
  }
  throw std::logic_error("no row " + codec);
}

TEST(IndexStudy, FindsWhatAnotherProgramFoundAndOrdersCodesAsTheyMust) {
  const Model model = load_model(kSmolQ41);
  IndexStudyOptions options;
  options.ranks = {16, 32, 48};
  options.calibrations = {512, 4096};
  options.session.n_threads = 2;
  const auto rows =
      require(run_index_study(model, book_tokens(model, "emma.txt", 4096),
                              book_tokens(model, "prideprejudice.txt", 4096), options, {}));
  // Recall of the best 64 with rank 16, 32, 48; other positions ask, so within .02.
  const std::map<std::string, std::vector<double>> expected = {
      {"saki", {.633, .799, .898}}, {"pca", {.467, .681, .786}}, {"dims", {.575, .749, .861}}};
  for (const auto& [codec, recalls] : expected) {
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(row_of(rows, codec, options.ranks[i]).recall_mean, recalls[i], 0.022)
          << codec << options.ranks[i];
    }
  }
  for (const int rank : options.ranks) {
    const IndexStudyRow& saki = row_of(rows, "saki", rank);
    EXPECT_GT(saki.win_share, 0.9);
    for (const char* weights : {"weight_svd", "schur"}) {
      EXPECT_GT(saki.recall, row_of(rows, weights, rank, 0).recall) << weights;
      EXPECT_LT(row_of(rows, weights, rank, 0).win_share, row_of(rows, "saki", rank).win_share);
    }
    for (const char* other : {"pca", "dims", "weighted_span", "raw_span"}) {
      EXPECT_GT(saki.recall, row_of(rows, other, rank).recall) << other;
      EXPECT_LT(saki.measured_error, row_of(rows, other, rank).measured_error) << other;
    }
  }
  EXPECT_GT(row_of(rows, "saki", 32).correlation, 0.85);
  // An eighth of the rows is better than PCA with all of them.
  EXPECT_GT(row_of(rows, "saki", 32, 512).recall, row_of(rows, "pca", 32).recall);
}

TEST(IndexStudy, RefusesTextsThatAreTooShort) {
  const Model model = load_model(kWired);
  const std::vector<TokenId> few(100, 1);
  EXPECT_FALSE(run_index_study(model, few, few, {}, {}).ok());
}

}  // namespace
}  // namespace volvelle::test
