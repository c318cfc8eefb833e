// One layer after the other is studied on all its heads; the table holds what all heads say.
#include "eval/index_study.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/result_macros.hpp"
#include "eval/head_capture.hpp"
#include "eval/head_weights.hpp"
#include "eval/progress_meter.hpp"
#include "eval/statistics.hpp"
#include "index/codec_study.hpp"
#include "index/recall_law.hpp"

namespace volvelle {
namespace {

/// One line of the table while heads come in.
struct Line {
  StudyCodec codec;
  int rank;
  std::int64_t calibration;
  bool shrink;
  std::vector<double> recall, measured, predicted, predicted_recall, spikes;  // [query head]
};

/// All codes of one rank with all rows, then the closed form and PCA with fewer.
std::vector<Line> make_lines(const IndexStudyOptions& options, std::int64_t n_rows,
                             bool knows_rotation) {
  std::vector<Line> lines;
  const auto add = [&](StudyCodec codec, int rank, std::int64_t n, bool shrink) {
    lines.push_back({codec, rank, n, shrink, {}, {}, {}, {}, {}});
  };
  const std::int64_t most = std::min(n_rows - 4, options.calibrations.back());
  for (const int rank : options.ranks) {
    for (const StudyCodec codec :
         {StudyCodec::kPrincipal, StudyCodec::kBalanced, StudyCodec::kPlain,
          StudyCodec::kDimensions, StudyCodec::kWeightedSpan, StudyCodec::kRawSpan})
      add(codec, rank, most, false);
    if (knows_rotation) add(StudyCodec::kBlocks, rank, most, false);
    // Of weights alone, in the frame before rotation: no rows are behind them.
    add(StudyCodec::kWeights, rank, 0, false);
    add(StudyCodec::kInvariant, rank, 0, false);
  }
  const int rank = options.ranks[options.ranks.size() / 2];
  for (const std::int64_t wanted : options.calibrations) {
    const std::int64_t n = std::min(wanted, most);
    add(StudyCodec::kPrincipal, rank, n, false);
    add(StudyCodec::kBalanced, rank, n, false);
    add(StudyCodec::kBalanced, rank, n, true);
  }
  return lines;
}

/// Moments of one head by number of rows and shrinkage, made once.
class MomentsOfHead {
 public:
  explicit MomentsOfHead(const HeadSample& sample) : sample_(sample) {}
  const StudyMoments& get(std::int64_t n_rows, bool shrink) {
    for (const Entry& entry : made_) {
      if (entry.n_rows == n_rows && entry.shrink == shrink) return *entry.moments;
    }
    made_.push_back(
        {n_rows, shrink, std::make_unique<StudyMoments>(study_moments(sample_, n_rows, shrink))});
    return *made_.back().moments;
  }

 private:
  struct Entry {
    std::int64_t n_rows;
    bool shrink;
    std::unique_ptr<StudyMoments> moments;
  };
  const HeadSample& sample_;
  std::vector<Entry> made_;
};

/// `weights`: of the head, or nothing.
Status study_head(const HeadSample& made_of, const HeadSample& read, const HeadWeights* weights,
                  const IndexStudyOptions& options, const BlockFrame& of_model,
                  std::vector<Line>& lines) {
  MomentsOfHead moments(made_of);
  const BlockFrame none;
  // Layers may have other heads than the rotation was made for.
  const BlockFrame& frame = 2 * std::ssize(of_model.angles) <= made_of.dim ? of_model : none;
  // Rows one by one: the frame before rotation.
  BlockFrame before = frame;
  before.block = frame.block > 0 ? 1 : 0;
  StudyMoments of_weights;
  if (weights != nullptr) of_weights = weight_moments(*weights);
  StudyMoments blocks;
  if (frame.block > 0) blocks = study_moments(made_of, lines.front().calibration, false, frame);
  const std::vector<StudyTruth> truths = study_truths(read, options.queries, options.k);
  const double share =
      static_cast<double>(options.k) / static_cast<double>(truths.front().scores.size());
  for (Line& line : lines) {
    if (line.rank > made_of.dim) continue;
    const bool in_blocks = line.codec == StudyCodec::kBlocks;
    const bool from_weights =
        line.codec == StudyCodec::kWeights || line.codec == StudyCodec::kInvariant;
    if ((in_blocks || from_weights) && frame.block == 0) continue;
    if (from_weights && weights == nullptr) continue;
    const BlockFrame& used = in_blocks ? frame : from_weights ? before : none;
    const StudyMoments& of = in_blocks      ? blocks
                             : from_weights ? of_weights
                                            : moments.get(line.calibration, line.shrink);
    VOLVELLE_ASSIGN_OR_RETURN(const StudyMap map, make_study_map(line.codec, of, line.rank));
    const StudyScore score = score_map(map, of, read, truths, used);
    for (std::size_t g = 0; g < score.recall.size(); ++g) {
      line.recall.push_back(score.recall[g]);
      line.measured.push_back(score.measured[g]);
      line.predicted.push_back(score.predicted[g]);
      line.predicted_recall.push_back(
          predicted_recall(std::clamp(score.predicted[g], 1e-9, 1.0), share));
      line.spikes.push_back(of.key_spikes);
    }
  }
  return {};
}

IndexStudyRow row_of(const Line& line, const std::vector<Line>& lines) {
  IndexStudyRow row;
  row.codec = to_string(line.codec);
  row.rank = line.rank;
  row.calibration = line.calibration;
  row.shrink = line.shrink;
  row.recall = median(line.recall);
  row.recall_mean = sample_mean(line.recall).mean;
  row.predicted_error = median(line.predicted);
  row.measured_error = median(line.measured);
  row.correlation = correlation(line.predicted, line.measured);
  row.predicted_recall = sample_mean(line.predicted_recall).mean;
  const auto is_pca = [&](const Line& other) {
    return other.codec == StudyCodec::kPrincipal && other.rank == line.rank &&
           (line.calibration == 0 || other.calibration == line.calibration);
  };
  const auto pca = std::find_if(lines.begin(), lines.end(), is_pca);
  if (pca == lines.end() || line.recall.size() != pca->recall.size()) return row;
  std::vector<double> gain;
  double wins = 0.0;
  for (std::size_t i = 0; i < line.recall.size(); ++i) {
    gain.push_back(line.recall[i] - pca->recall[i]);
    wins += gain.back() > 0.0 ? 1.0 : 0.0;
  }
  row.win_share = wins / static_cast<double>(gain.size());
  row.spike_correlation = correlation(gain, line.spikes);
  return row;
}

}  // namespace

Result<std::vector<IndexStudyRow>> run_index_study(const Model& model,
                                                   std::span<const TokenId> made_of,
                                                   std::span<const TokenId> read,
                                                   const IndexStudyOptions& options,
                                                   const ProgressSink& progress) {
  const auto n = std::min(std::ssize(made_of), std::ssize(read));
  if (n < kMinIndexedTokens || options.ranks.empty() || options.calibrations.empty() ||
      options.queries < 1 || options.k < 1 || options.k > n / 4) {
    return Error{ErrorCode::kInvalidArgument,
                 "index study: expected texts of at least " + std::to_string(kMinIndexedTokens) +
                     " tokens, ranks, calibration lengths, and k up to a quarter of the tokens"};
  }
  ProgressMeter meter(progress, "capture", "tokens", std::ssize(made_of) + std::ssize(read));
  VOLVELLE_ASSIGN_OR_RETURN(const LayerSamples from,
                            capture_heads(model, made_of, options.session, meter));
  VOLVELLE_ASSIGN_OR_RETURN(const LayerSamples to,
                            capture_heads(model, read, options.session, meter));
  const Result<BlockFrame> known = make_block_frame(model.info().rope);
  const BlockFrame frame = known.ok() ? *known : BlockFrame{};
  std::vector<Line> lines = make_lines(options, n, frame.block > 0);
  VOLVELLE_ASSIGN_OR_RETURN(const ModelWeights weights, ModelWeights::open(model));
  ProgressMeter studied(progress, "study", "layers", std::ssize(from));
  for (std::size_t layer = 0; layer < from.size(); ++layer) {
    if (from[layer].empty()) continue;
    const Result<std::vector<HeadWeights>> of_layer =
        head_weights(model, weights, static_cast<int>(layer));
    for (std::size_t head = 0; head < from[layer].size(); ++head) {
      if (options.session.cancel.cancelled())
        return Error{ErrorCode::kCancelled, "index study: interrupted"};
      VOLVELLE_RETURN_IF_ERROR(study_head(from[layer][head], to[layer][head],
                                          of_layer.ok() ? &(*of_layer)[head] : nullptr, options,
                                          frame, lines));
    }
    studied.add(1);
  }
  std::vector<IndexStudyRow> rows;
  for (const Line& line : lines) {
    if (!line.recall.empty()) rows.push_back(row_of(line, lines));
  }
  return rows;
}

}  // namespace volvelle
