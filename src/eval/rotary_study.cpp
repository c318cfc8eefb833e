// Rows are captured after rotation and turned back by their own positions; predicted curves use
// means over them and never see a distance, so nothing is fitted.
#include "eval/rotary_study.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/result_macros.hpp"
#include "bounds/edit_audit.hpp"
#include "eval/head_capture.hpp"
#include "eval/head_weights.hpp"
#include "eval/statistics.hpp"
#include "index/band_curves.hpp"
#include "index/head_curves.hpp"
#include "index/recall_law.hpp"

namespace volvelle {
namespace {

constexpr double kFailure = 0.05;  // of capacities

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
      study_moments(sample, std::min<std::int64_t>(sample.n - kSinkTokens, 1024), true);
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

/// What heads that rotate alike share.
struct GroupTables {
  BandCurves curves;
  BandTurns turns;
};

/// What the study of a head needs beside its rows.
struct HeadContext {
  const GroupTables& tables;
  std::span<const std::int64_t> targets;
  const RotaryStudyOptions& options;
};

ThresholdRange range_of(const BandCurves& curves, const MeanBands& mean, double level) {
  return {level, curves.limit(), curves.range(mean.logits(), std::max(0.0, level - mean.constant))};
}

/// The predicted curve beside the measured one, and what its bands say of distances.
void add_mean_curve(const HeadSample& sample, int g, const MeanBands& mean,
                    const HeadContext& context, RotaryHead& head) {
  const BandCurves& curves = context.tables.curves;
  const std::int64_t max_distance = context.options.max_distance;
  double whole = 0.0, slow = 0.0;
  for (std::size_t b = 0; b < mean.amplitude.size(); ++b) {
    whole += mean.amplitude[b];
    slow += b >= mean.amplitude.size() / 2 ? mean.amplitude[b] : 0.0;
  }
  head.slow_share = whole > 0.0 ? slow / whole : 0.0;
  for (const double a : mean.amplitude) head.band_shares.push_back(whole > 0.0 ? a / whole : 0.0);
  std::vector<double> predicted;
  for (std::int64_t d = 1; d <= max_distance; ++d)
    predicted.push_back(mean.logit(curves.bands(), static_cast<double>(d)));
  const LogitCurve measured = logit_curve(sample, g, max_distance);
  compare_curves(predicted, measured, head);
  for (const std::int64_t d : curve_distances(max_distance)) {
    head.predicted.push_back(predicted[static_cast<std::size_t>(d - 1)]);
    head.measured.push_back(measured.mean[static_cast<std::size_t>(d - 1)]);
  }
  if (const double start = mean.logit(curves.bands(), 0.0); start > 0.0)
    head.range = range_of(curves, mean, 0.5 * start);
  head.alias = curves.alias(head.band_shares, kHeadAliasLimit);
  if (!(head.alias.value > 0.0)) head.alias = {};  // it never comes back
}

/// What keys that should be found do at any distance.
void add_retrieval(const MatchedStudy& study, const HeadContext& context, RotaryHead& head) {
  head.n_pairs = study.n_pairs;
  if (study.n_pairs == 0) return;
  const BandCurves& curves = context.tables.curves;
  for (const std::int64_t d : curve_distances(context.options.max_distance))
    head.matched.push_back(study.matched.logit(curves.bands(), static_cast<double>(d)));
  for (const TargetLogits& logits : study.at) {
    const double z = logits.z();
    const double advantage = std::max(0.0, logits.matched - logits.background);
    head.at.push_back({logits, z, argmax_capacity(z, kFailure),
                       advantage > 0.0 ? ln_softmax_capacity(advantage, logits.sigma) : 0.0});
  }
  head.target_range = range_of(curves, study.excess,
                               capacity_quantile(kFoundAmong, kNotFound) * mean_deviation(study));
}

RotaryHead study(const HeadSample& sample, int g, const BandLayout& layout,
                 const UnturnedRows& keys, const HeadContext& context) {
  RotaryHead head;
  const GroupTables& tables = context.tables;
  const UnturnedRows queries = unturned_rows(sample.query(g, 0), layout, tables.turns);
  add_mean_curve(sample, g, background_bands(queries, keys, sample.scale), context, head);
  add_retrieval(matched_study(queries, keys, sample.scale, context.targets, tables.curves.bands(),
                              retrieval_distances(context.options.max_distance)),
                context, head);
  const HeadHabits habits = head_habits(sample, g, context.targets);
  head.induction_z = habits.induction_z;
  head.capacity = argmax_capacity(habits.induction_z, kFailure);
  head.sink_mass = habits.sink_mass;
  head.key_rank = habits.key_rank;
  return head;
}

/// All heads of one layer.
Status study_layer(const std::vector<HeadSample>& samples, const BandLayout& layout,
                   std::span<const QueryFactor> factors, const HeadContext& context,
                   std::vector<RotaryHead>& heads) {
  for (std::size_t kv = 0; kv < samples.size(); ++kv) {
    const HeadSample& sample = samples[kv];
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<double> recalls, recalls_of(sample));
    const UnturnedRows keys = unturned_rows(sample.keys.data(), layout, context.tables.turns);
    for (int g = 0; g < sample.group; ++g) {
      RotaryHead head = study(sample, g, layout, keys, context);
      head.head = static_cast<int>(kv) * sample.group + g;
      head.recall = recalls;
      if (const auto at = static_cast<std::size_t>(head.head); at < factors.size())
        head.query_share = longest_share(sample, g, layout, factors[at]);
      heads.push_back(std::move(head));
    }
  }
  return {};
}

/// Made when first asked for: most models rotate all layers alike.
class TablesOfGroups {
 public:
  TablesOfGroups(std::int64_t n, std::int64_t range_limit) : n_(n), range_limit_(range_limit) {}
  const GroupTables& of(const RotationGroup& group) {
    auto found = made_.find(&group);
    if (found == made_.end()) {
      GroupTables tables{BandCurves(group.bands, range_limit_), band_turns(group.bands, n_)};
      found = made_.emplace(&group, std::move(tables)).first;
    }
    return found->second;
  }

 private:
  std::int64_t n_, range_limit_;
  std::map<const RotationGroup*, GroupTables> made_;
};

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

std::vector<std::int64_t> retrieval_distances(std::int64_t max_distance) {
  std::vector<std::int64_t> distances;
  for (const std::int64_t distance : {64, 512, 1024, 4096, 16384, 65536, 262144})
    if (distance <= max_distance) distances.push_back(distance);
  if (distances.empty() || distances.back() < max_distance) distances.push_back(max_distance);
  return distances;
}

Result<std::vector<RotaryHead>> run_rotary_study(const Model& model,
                                                 const ModelRotations& rotations,
                                                 const ModelQueryFactors& factors,
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
  const std::vector<std::int64_t> targets = induction_targets(tokens);
  TablesOfGroups tables(std::ssize(tokens), options.range_limit);
  std::vector<RotaryHead> heads;
  ProgressMeter studied(progress, "analyse", "layers", std::ssize(layers));
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (options.session.cancel.cancelled())
      return Error{ErrorCode::kCancelled, "analysis: interrupted"};
    const RotationGroup* const rotation = rotations.of(static_cast<int>(layer));
    if (rotation != nullptr && !layers[layer].empty()) {
      VOLVELLE_ASSIGN_OR_RETURN(const BandLayout layout,
                                band_layout(model, static_cast<int>(layer)));
      const std::size_t before = heads.size();
      std::span<const QueryFactor> of_layer;
      if (layer < factors.layers.size()) of_layer = factors.layers[layer];
      VOLVELLE_RETURN_IF_ERROR(study_layer(layers[layer], layout, of_layer,
                                           {tables.of(*rotation), targets, options}, heads));
      for (std::size_t i = before; i < heads.size(); ++i) heads[i].layer = static_cast<int>(layer);
    }
    studied.add(1);
  }
  return heads;
}

}  // namespace volvelle
