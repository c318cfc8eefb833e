// One layer after the other is studied on all its heads; the table holds what all heads say.
#include "eval/index_study.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/result_macros.hpp"
#include "eval/progress_meter.hpp"
#include "index/codec_study.hpp"
#include "index/recall_law.hpp"

namespace volvelle {
namespace {

/// [layer][kv head]
using LayerSamples = std::vector<std::vector<HeadSample>>;

LayerSamples empty_samples(const ModelInfo& info, std::int64_t n) {
  LayerSamples samples(info.layers.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const LayerShape& layer = info.layers[i];
    if (layer.n_kv_heads == 0 || layer.window > 0 || info.n_heads % layer.n_kv_heads != 0) continue;
    HeadSample head;
    head.dim = layer.head_dim_k;
    head.group = info.n_heads / layer.n_kv_heads;
    head.n = n;
    head.keys.resize(static_cast<std::size_t>(n * head.dim));
    head.queries.resize(head.keys.size() * static_cast<std::size_t>(head.group));
    samples[i].assign(static_cast<std::size_t>(layer.n_kv_heads), head);
  }
  return samples;
}

void keep(const CapturedRows& rows, LayerSamples& samples) {
  std::vector<HeadSample>& heads = samples[static_cast<std::size_t>(rows.layer.value())];
  if (heads.empty() || rows.kind == CapturedRows::Kind::kValue) return;
  const int group = heads.front().group;
  for (std::int64_t t = 0; t < rows.n_tokens; ++t) {
    const std::int64_t at = rows.first_position.value() + t;
    for (std::int64_t h = 0; h < rows.n_heads; ++h) {
      const float* from = rows.data + t * rows.token_stride + h * rows.head_stride;
      const bool is_key = rows.kind == CapturedRows::Kind::kKey;
      HeadSample& head = heads[static_cast<std::size_t>(is_key ? h : h / group)];
      float* to = is_key ? head.keys.data() + at * head.dim
                         : head.queries.data() + (h % group * head.n + at) * head.dim;
      std::copy_n(from, head.dim, to);
    }
  }
}

Result<LayerSamples> capture(const Model& model, std::span<const TokenId> tokens,
                             const IndexStudyOptions& options, ProgressMeter& meter) {
  LayerSamples samples = empty_samples(model.info(), std::ssize(tokens));
  SessionOptions with_capture = options.session;
  with_capture.capture = [&](const CapturedRows& rows) { keep(rows, samples); };
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, with_capture));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(MemorySpec::full_memory()));
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t n = std::min<std::size_t>(512, tokens.size() - done);
    VOLVELLE_RETURN_IF_ERROR(session.step(memory, tokens.subspan(done, n), Logits::kNone));
    meter.add(static_cast<std::int64_t>(n));
    done += n;
  }
  return samples;
}

double median(std::vector<double> x) {
  if (x.empty()) return 0.0;
  const auto middle = x.begin() + std::ssize(x) / 2;
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

double mean(const std::vector<double>& x) {
  return x.empty() ? 0.0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double pearson(const std::vector<double>& a, const std::vector<double>& b) {
  const double ma = mean(a), mb = mean(b);
  double ab = 0.0, aa = 0.0, bb = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - ma) * (b[i] - mb);
    aa += (a[i] - ma) * (a[i] - ma);
    bb += (b[i] - mb) * (b[i] - mb);
  }
  return aa > 0.0 && bb > 0.0 ? ab / std::sqrt(aa * bb) : 0.0;
}

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

Status study_head(const HeadSample& made_of, const HeadSample& read,
                  const IndexStudyOptions& options, const BlockFrame& of_model,
                  std::vector<Line>& lines) {
  MomentsOfHead moments(made_of);
  const BlockFrame none;
  // Layers may have other heads than the rotation was made for.
  const BlockFrame& frame = 2 * std::ssize(of_model.angles) <= made_of.dim ? of_model : none;
  StudyMoments blocks;
  if (frame.block > 0) blocks = study_moments(made_of, lines.front().calibration, false, frame);
  const std::vector<StudyTruth> truths = study_truths(read, options.queries, options.k);
  const double share =
      static_cast<double>(options.k) / static_cast<double>(truths.front().scores.size());
  for (Line& line : lines) {
    if (line.rank > made_of.dim) continue;
    const bool in_blocks = line.codec == StudyCodec::kBlocks;
    if (in_blocks && frame.block == 0) continue;
    const BlockFrame& used = in_blocks ? frame : none;
    const StudyMoments& of = in_blocks ? blocks : moments.get(line.calibration, line.shrink);
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
  row.recall_mean = mean(line.recall);
  row.predicted_error = median(line.predicted);
  row.measured_error = median(line.measured);
  row.correlation = pearson(line.predicted, line.measured);
  row.predicted_recall = mean(line.predicted_recall);
  const auto is_pca = [&](const Line& other) {
    return other.codec == StudyCodec::kPrincipal && other.rank == line.rank &&
           other.calibration == line.calibration;
  };
  const auto pca = std::find_if(lines.begin(), lines.end(), is_pca);
  if (pca == lines.end() || line.recall.empty()) return row;
  std::vector<double> gain;
  double wins = 0.0;
  for (std::size_t i = 0; i < line.recall.size(); ++i) {
    gain.push_back(line.recall[i] - pca->recall[i]);
    wins += gain.back() > 0.0 ? 1.0 : 0.0;
  }
  row.win_share = wins / static_cast<double>(gain.size());
  row.spike_correlation = pearson(gain, line.spikes);
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
  VOLVELLE_ASSIGN_OR_RETURN(const LayerSamples from, capture(model, made_of, options, meter));
  VOLVELLE_ASSIGN_OR_RETURN(const LayerSamples to, capture(model, read, options, meter));
  const Result<BlockFrame> known = make_block_frame(model.info().rope);
  const BlockFrame frame = known.ok() ? *known : BlockFrame{};
  std::vector<Line> lines = make_lines(options, n, frame.block > 0);
  ProgressMeter studied(progress, "study", "layers", std::ssize(from));
  for (std::size_t layer = 0; layer < from.size(); ++layer) {
    for (std::size_t head = 0; head < from[layer].size(); ++head) {
      if (options.session.cancel.cancelled())
        return Error{ErrorCode::kCancelled, "index study: interrupted"};
      VOLVELLE_RETURN_IF_ERROR(
          study_head(from[layer][head], to[layer][head], options, frame, lines));
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
