// Score codes on the real keys and queries of a model: recall of the best keys by rank and code,
// predicted against measured error, and how many calibration tokens are needed (SAKI, arXiv
// 2608.03228, its tables, on codes that the heads of a group share and on held-out text).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

struct IndexStudyOptions {
  std::vector<int> ranks = {16, 32, 64};
  std::vector<std::int64_t> calibrations = {256, 512, 1024, 4096};
  std::int64_t k = 64;
  std::int64_t queries = 16;  // late positions
  SessionOptions session;
};

struct IndexStudyRow {
  std::string codec;
  int rank = 0;
  std::int64_t calibration = 0;  // rows
  bool shrink = false;
  double recall = 0.0;  // median over query heads of the mean over queries
  double recall_mean = 0.0;
  double win_share = 0.0;        // query heads in which it finds more than PCA of the same rank
  double predicted_error = 0.0;  // medians over query heads
  double measured_error = 0.0;
  double correlation = 0.0;        // of predicted and measured error over query heads (Pearson)
  double predicted_recall = 0.0;   // mean of the law that knows the predicted error alone
  double spike_correlation = 0.0;  // of the gain over PCA with the number of key spikes
};

/// Reads both texts exactly; moments from the first, reads in the second, of all layers without a
/// window of their own. Needs n_heads x tokens x head_dim floats for each layer and text.
Result<std::vector<IndexStudyRow>> run_index_study(const Model& model,
                                                   std::span<const TokenId> made_of,
                                                   std::span<const TokenId> read,
                                                   const IndexStudyOptions& options,
                                                   const ProgressSink& progress);

}  // namespace volvelle
