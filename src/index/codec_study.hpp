// Score codes of few coordinates compared on the keys and queries of one KV head: what they
// predict, what they find. For `bench index`; reads never use rank-limited codes by default.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "volvelle/base/result.hpp"
#include "volvelle/index/code_index.hpp"

namespace volvelle {

/// Keys [n, dim] and queries [group, n, dim] of one KV head at positions 0 to n - 1.
struct HeadSample {
  int dim = 0;
  int group = 0;
  double scale = 1.0;  // of products of queries and keys: logits
  std::int64_t n = 0;
  std::vector<float> keys;
  std::vector<float> queries;
  int value_dim = 0;
  std::vector<float> values;  // [n, value_dim], if they were asked for
  const float* query(int g, std::int64_t t) const noexcept {
    return queries.data() + (g * n + t) * dim;
  }
};

/// Moments of `n_rows` positions spread evenly over a sample.
struct StudyMoments {
  int dim = 0;
  std::vector<double> query_moment;                     // of the group, normalised per query
  std::vector<double> plain_query_moment;               // of the group
  std::vector<std::vector<double>> head_query_moments;  // [group], plain
  std::vector<double> key_covariance;
  std::vector<double> key_mean;
  std::vector<double> key_query;  // of weights only: Wk Wq^T, queries of the group added up
  int key_spikes = 0;
};
StudyMoments study_moments(const HeadSample& sample, std::int64_t n_rows, bool shrink,
                           const BlockFrame& frame = {});

/// Projections of one KV head, with what the norm in front of them multiplies: keys [dim, n_embd],
/// queries [group, dim, n_embd].
struct HeadWeights {
  int dim = 0;
  int group = 0;
  int n_embd = 0;
  std::vector<float> key;
  std::vector<float> query;
};
/// Moments before rotation if inputs were isotropic: what weights alone say.
StudyMoments weight_moments(const HeadWeights& weights);

enum class StudyCodec {
  kBalanced,      // the closed form, queries normalised
  kPlain,         // the closed form, plain query moment (the paper's)
  kPrincipal,     // PCA of keys
  kDimensions,    // plain coordinates
  kWeightedSpan,  // orthogonal projection on the closed form's span, Sk^(1/2) V
  kRawSpan,       // the same on V
  kBlocks,        // the closed form in the frames of blocks
  kWeights,       // the closed form of weight_moments(): the best rank-limited Wq^T Wk
  kInvariant,     // orthogonal projection on the leading invariant subspace of Wk Wq^T (Schur)
};
std::string_view to_string(StudyCodec codec) noexcept;

/// A map of `rank` coordinates: score ~ (decode^T q) . encode (k - mean).
struct StudyMap {
  int dim = 0;
  int rank = 0;
  std::vector<double> encode;  // [rank, dim]
  std::vector<double> decode;  // [dim, rank]
};
Result<StudyMap> make_study_map(StudyCodec codec, const StudyMoments& moments, int rank);

/// Rows [n, dim] as the map keeps them: mean + D E (row - mean).
std::vector<float> through_map(const StudyMap& map, const StudyMoments& moments,
                               std::span<const float> rows);

/// Score error over score power that the moments predict of a map, queries of the group together.
double predicted_score_error(const StudyMap& map, const StudyMoments& moments);

/// Exact scores of late queries over the rows that an index would search: behind four sinks and
/// before the last 64.
struct StudyTruth {
  std::int64_t position = 0;
  int g = 0;
  std::vector<float> scores;       // of rows [4, position - 64)
  std::vector<std::int32_t> best;  // the `k` largest, ascending
};
std::vector<StudyTruth> study_truths(const HeadSample& sample, std::int64_t n_queries,
                                     std::int64_t k);

/// [group]
struct StudyScore {
  std::vector<double> recall;     // share of the best that the map finds
  std::vector<double> measured;   // score error over score variance, means of queries removed
  std::vector<double> predicted;  // the same from the moments
};
StudyScore score_map(const StudyMap& map, const StudyMoments& moments, const HeadSample& sample,
                     const std::vector<StudyTruth>& truths, const BlockFrame& frame = {});

}  // namespace volvelle
