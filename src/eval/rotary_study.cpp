// Rows are captured after rotation and turned back by their own positions; predicted curves use
// their means and never see a distance, so nothing is fitted.
#include "eval/rotary_study.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <numeric>

#include "base/result_macros.hpp"
#include "bounds/edit_audit.hpp"
#include "eval/head_capture.hpp"
#include "eval/head_weights.hpp"
#include "eval/statistics.hpp"
#include "index/head_curves.hpp"
#include "index/recall_law.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kSinks = 4;

using Complex = std::complex<double>;

/// Bands of one row before rotation.
std::vector<Complex> turned_back(const BandFrequencies& bands, bool half_split, const float* row,
                                 std::int64_t position) {
  std::vector<Complex> z(bands.size());
  for (std::size_t b = 0; b < bands.size(); ++b) {
    const float x = half_split ? row[b] : row[2 * b];
    const float y = half_split ? row[b + bands.size()] : row[2 * b + 1];
    z[b] = Complex(static_cast<double>(x), static_cast<double>(y)) *
           std::polar(1.0, -bands.angle(b, static_cast<std::uint64_t>(position)));
  }
  return z;
}

std::vector<Complex> mean_bands(const BandFrequencies& bands, bool half_split, const float* rows,
                                int dim, std::int64_t n) {
  std::vector<Complex> sum(bands.size());
  for (std::int64_t t = kSinks; t < n; ++t) {
    const std::vector<Complex> z = turned_back(bands, half_split, rows + t * dim, t);
    for (std::size_t b = 0; b < sum.size(); ++b) sum[b] += z[b] / static_cast<double>(n - kSinks);
  }
  return sum;
}

/// x with a line through (1, basis) taken off.
std::vector<double> detrended(const std::vector<double>& x, const std::vector<double>& basis) {
  const double mean_x = sample_mean(x).mean;
  const double mean_b = sample_mean(basis).mean;
  double xb = 0.0, bb = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xb += (x[i] - mean_x) * (basis[i] - mean_b);
    bb += (basis[i] - mean_b) * (basis[i] - mean_b);
  }
  const double slope = bb > 0.0 ? xb / bb : 0.0;
  std::vector<double> rest;
  for (std::size_t i = 0; i < x.size(); ++i)
    rest.push_back(x[i] - mean_x - slope * (basis[i] - mean_b));
  return rest;
}

/// Correlations of the predicted with the measured curve.
void compare_curves(const std::vector<double>& predicted, const LogitCurve& measured,
                    RotaryHead& head) {
  std::vector<double> logarithm, linear;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    logarithm.push_back(std::log(static_cast<double>(i + 1)));
    linear.push_back(static_cast<double>(i + 1));
  }
  head.raw_r = correlation(predicted, measured.mean);
  const std::vector<double> expected = detrended(predicted, logarithm);
  head.detrended_r = correlation(expected, detrended(measured.mean, logarithm));
  head.linear_r = correlation(detrended(predicted, linear), detrended(measured.mean, linear));
  double signal = 0.0, noise = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    signal += expected[i] * expected[i];
    noise += measured.variance[i] / static_cast<double>(measured.n);
  }
  head.ceiling_r = signal + noise > 0.0 ? std::sqrt(signal / (signal + noise)) : 0.0;
}

/// For each position the place behind the last earlier occurrence of its token, or -1.
std::vector<std::int64_t> induction_targets(std::span<const TokenId> tokens) {
  std::map<TokenId, std::int64_t> last;
  std::vector<std::int64_t> targets;
  for (std::int64_t t = 0; t < std::ssize(tokens); ++t) {
    const TokenId token = tokens[static_cast<std::size_t>(t)];
    const auto found = last.find(token);
    targets.push_back(found == last.end() || found->second + 1 >= t ? -1 : found->second + 1);
    last[token] = t;
  }
  return targets;
}

/// Mean recall that the law predicts of codes of few coordinates for one KV head, by rank.
Result<std::vector<double>> recalls_of(const HeadSample& sample) {
  const StudyMoments moments =
      study_moments(sample, std::min<std::int64_t>(sample.n - kSinks, 1024), true);
  const double share = std::min(1.0, 64.0 / static_cast<double>(sample.n));
  std::vector<double> recalls;
  for (const int rank : kRecallRanks) {
    VOLVELLE_ASSIGN_OR_RETURN(const StudyMap map, make_study_map(StudyCodec::kBalanced, moments,
                                                                 std::min(rank, sample.dim)));
    const double error = std::clamp(predicted_score_error(map, moments), 1e-9, 1.0);
    recalls.push_back(predicted_recall(error, share));
  }
  return recalls;
}

/// How long measured bands are beside what weights allow, the largest share.
double longest_share(const HeadSample& sample, int g, const BandLayout& layout,
                     const QueryFactor& factor) {
  double largest = 0.0;
  for (std::int64_t t = 0; t < sample.n; ++t) {
    const float* const q = sample.query(g, t);
    for (int b = 0; b < layout.n_bands(); ++b) {
      const double length = std::hypot(static_cast<double>(q[layout.first(b)]),
                                       static_cast<double>(q[layout.second(b)]));
      largest = std::max(largest, change_ratio(length, factor.band[static_cast<std::size_t>(b)]));
    }
  }
  return largest;
}

RotaryHead study(const HeadSample& sample, int g, const RotationGroup& rotation,
                 std::span<const std::int64_t> targets, const RotaryStudyOptions& options) {
  RotaryHead head;
  const BandFrequencies& bands = rotation.bands;
  const bool half_split = rotation.node.layout == RopeLayout::kHalfSplit;
  const double scale = sample.scale;
  const auto q = mean_bands(bands, half_split, sample.query(g, 0), sample.dim, sample.n);
  const auto k = mean_bands(bands, half_split, sample.keys.data(), sample.dim, sample.n);
  std::vector<double> amplitude, phase;
  double whole = 0.0, slow = 0.0;
  for (std::size_t b = 0; b < bands.size(); ++b) {
    const Complex c = q[b] * std::conj(k[b]) * scale;
    amplitude.push_back(std::abs(c));
    phase.push_back(std::arg(c));
    whole += amplitude.back();
    slow += b >= bands.size() / 2 ? amplitude.back() : 0.0;
  }
  head.slow_share = whole > 0.0 ? slow / whole : 0.0;
  for (const double a : amplitude) head.band_shares.push_back(whole > 0.0 ? a / whole : 0.0);
  std::vector<double> predicted;
  for (std::int64_t d = 1; d <= options.max_distance; ++d)
    predicted.push_back(logit_at(bands, {amplitude, phase}, static_cast<double>(d)));
  const LogitCurve measured = logit_curve(sample, g, options.max_distance);
  compare_curves(predicted, measured, head);
  for (const std::int64_t d : curve_distances(options.max_distance)) {
    head.predicted.push_back(predicted[static_cast<std::size_t>(d - 1)]);
    head.measured.push_back(measured.mean[static_cast<std::size_t>(d - 1)]);
  }
  const HeadHabits habits = head_habits(sample, g, targets);
  head.induction_z = habits.induction_z;
  head.capacity = argmax_capacity(habits.induction_z, 0.05);
  head.sink_mass = habits.sink_mass;
  head.key_rank = habits.key_rank;
  head.range = retrieval_range(bands, {amplitude}, 0.5 * whole, 1).law;
  return head;
}

}  // namespace

std::vector<std::int64_t> curve_distances(std::int64_t max_distance) {
  constexpr int kPoints = 48;
  std::vector<std::int64_t> distances;
  for (int i = 0; i <= kPoints; ++i) {
    const double d = std::pow(static_cast<double>(max_distance), i / static_cast<double>(kPoints));
    const auto distance = static_cast<std::int64_t>(std::lround(d));
    if (distances.empty() || distance > distances.back()) distances.push_back(distance);
  }
  return distances;
}

RotaryFacts rotary_facts(const BandFrequencies& bands, std::int64_t length) {
  RotaryFacts facts;
  for (std::size_t b = 0; b < bands.size(); ++b) facts.wavelengths.push_back(bands.wavelength(b));
  facts.band_alias = band_alias(bands);
  const std::vector<double> table = kernel_table(bands, {}, length);
  facts.kernel_alias = kernel_alias(table);
  for (const double level : {0.75, 0.5, 0.25, 0.0})
    facts.crossings.push_back(first_below(table, level));
  for (const std::uint64_t distance : {64U, 512U, 4096U}) {
    facts.address_capacity.push_back(address_capacity(address_kernel(bands, {}, distance),
                                                      static_cast<int>(bands.size()), 0.05));
  }
  return facts;
}

namespace {

/// What the study of a layer needs beside its samples.
struct LayerContext {
  const Model& model;
  const ModelWeights& weights;
  std::span<const std::int64_t> targets;
  const RotaryStudyOptions& options;
};

/// All heads of one layer.
Status study_layer(const LayerContext& context, int layer, const std::vector<HeadSample>& samples,
                   const RotationGroup& rotation, std::vector<RotaryHead>& heads) {
  const auto& [model, weights, targets, options] = context;
  VOLVELLE_ASSIGN_OR_RETURN(const BandLayout layout, band_layout(model, layer));
  // Where weights say nothing the rest of the study stands.
  const Result<std::vector<QueryFactor>> factors = query_factors(model, weights, layer);
  for (std::size_t kv = 0; kv < samples.size(); ++kv) {
    const HeadSample& sample = samples[kv];
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<double> recalls, recalls_of(sample));
    for (int g = 0; g < sample.group; ++g) {
      RotaryHead head = study(sample, g, rotation, targets, options);
      head.layer = layer;
      head.head = static_cast<int>(kv) * sample.group + g;
      head.recall = recalls;
      if (factors.ok())
        head.query_share =
            longest_share(sample, g, layout, (*factors)[static_cast<std::size_t>(head.head)]);
      heads.push_back(std::move(head));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<RotaryHead>> run_rotary_study(const Model& model,
                                                 const ModelRotations& rotations,
                                                 std::span<const TokenId> tokens,
                                                 const RotaryStudyOptions& options,
                                                 const ProgressSink& progress) {
  if (options.max_distance < 8 || std::ssize(tokens) < 2 * options.max_distance) {
    return Error{ErrorCode::kInvalidArgument,
                 "analysis: expected at least twice as many tokens as distances, got " +
                     std::to_string(tokens.size()) + " and " +
                     std::to_string(options.max_distance)};
  }
  ProgressMeter meter(progress, "capture", "tokens", std::ssize(tokens));
  VOLVELLE_ASSIGN_OR_RETURN(const LayerSamples layers,
                            capture_heads(model, tokens, options.session, meter));
  VOLVELLE_ASSIGN_OR_RETURN(const ModelWeights weights, ModelWeights::open(model));
  const std::vector<std::int64_t> targets = induction_targets(tokens);
  std::vector<RotaryHead> heads;
  ProgressMeter studied(progress, "analyse", "layers", std::ssize(layers));
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (options.session.cancel.cancelled())
      return Error{ErrorCode::kCancelled, "analysis: interrupted"};
    const RotationGroup* const rotation = rotations.of(static_cast<int>(layer));
    if (rotation != nullptr && !layers[layer].empty()) {
      VOLVELLE_RETURN_IF_ERROR(study_layer({model, weights, targets, options},
                                           static_cast<int>(layer), layers[layer], *rotation,
                                           heads));
    }
    studied.add(1);
  }
  return heads;
}

}  // namespace volvelle
