// A layer's code from its own rows and late queries: moments, shrinkage, closed form, bits.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/result_macros.hpp"
#include "index/matrix.hpp"
#include "index/spectrum.hpp"
#include "index/stored_rows.hpp"
#include "volvelle/index/code_index.hpp"
#include "volvelle/index/moments.hpp"

namespace volvelle {
namespace {

/// Widths of keys come in fours; a byte more than asked for makes up for what that costs.
constexpr double kSpareKeyBits = 8.0;

/// Rows of one KV head, evenly spread over [sinks, n_rows).
struct SpreadRows {
  std::vector<float> keys;    // [n, dim_k]
  std::vector<float> values;  // [n, dim_v]
  std::int64_t n = 0;
};

Result<SpreadRows> spread_rows(const AttentionShape& shape,
                               std::span<const KeyValueSegment> segments, int head,
                               std::int64_t n_rows, const IndexOptions& options) {
  const StoredRows stored(shape, segments);
  const std::int64_t first = std::min(options.sinks, n_rows);
  const std::int64_t step =
      std::max<std::int64_t>(1, (n_rows - first + options.max_rows - 1) / options.max_rows);
  SpreadRows rows;
  rows.n = (n_rows - first + step - 1) / step;
  rows.keys.resize(static_cast<std::size_t>(rows.n * shape.head_dim_k));
  rows.values.resize(static_cast<std::size_t>(rows.n * shape.head_dim_v));
  for (std::int64_t i = 0; i < rows.n; ++i) {
    const std::int64_t row = first + i * step;
    float* const key = rows.keys.data() + i * shape.head_dim_k;
    const bool found = stored.load_keys(head, row, 1, key);
    if (found && options.frame.block > 0) options.frame.turn_back(options.frame.middle(row), key);
    if (found && stored.load_values(head, row, 1, rows.values.data() + i * shape.head_dim_v)) {
      continue;
    }
    return Error{ErrorCode::kInvalidArgument,
                 "index: row " + std::to_string(row) + " is not in the memory"};
  }
  return rows;
}

/// Queries as blocks before them see them: each turned for one of these, [n_tokens, n_heads, dim].
std::vector<float> turned_queries(const AttentionShape& shape, const QuerySample& queries,
                                  const BlockFrame& frame) {
  const std::int64_t width = static_cast<std::int64_t>(shape.n_heads) * shape.head_dim_k;
  std::vector<float> turned(queries.q, queries.q + queries.n_tokens * width);
  for (std::int64_t i = 0; i < queries.n_tokens; ++i) {
    const std::int64_t n_blocks = queries.positions[i] / frame.block + 1;
    const std::int64_t block = i * 7919 % n_blocks;  // a prime, so that blocks come in no order
    for (int h = 0; h < shape.n_heads; ++h)
      frame.turn_back(frame.middle(block * frame.block),
                      turned.data() + i * width + h * shape.head_dim_k);
  }
  return turned;
}

/// Moments of one KV head and how far they were shrunk.
struct HeadMoments {
  std::vector<double> query_moment;
  std::vector<double> key_covariance;
  std::vector<double> key_mean;
  HeadDiagnostics diagnostics;
};

void shrink_to(std::vector<double>& moment, double effective_rows, double& alpha) {
  alpha = shrinkage_intensity(moment, effective_rows);
  shrink(moment, alpha);
}

/// Sum over the heads of the group of E[q q^T], each normalised if asked for.
std::vector<double> group_query_moment(const AttentionShape& shape, int head,
                                       const QuerySample& queries, bool normalise,
                                       std::span<const double> key_covariance) {
  const int dim = shape.head_dim_k;
  const std::int64_t stride = static_cast<std::int64_t>(shape.n_heads) * dim;
  std::vector<double> total(key_covariance.size(), 0.0);
  for (int g = 0; g < shape.group(); ++g) {
    const float* q = queries.q + static_cast<std::ptrdiff_t>(head * shape.group() + g) * dim;
    std::vector<double> moment;
    if (normalise) {
      moment = normalised_query_moment(q, queries.n_tokens, stride, key_covariance);
    } else {
      Moments plain(dim);
      plain.add(q, queries.n_tokens, stride);
      moment = plain.second_moment();
    }
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += moment[i];
  }
  return total;
}

HeadMoments moments_of(const AttentionShape& shape, int head, const SpreadRows& rows,
                       const QuerySample& queries, const IndexOptions& options) {
  const int dim = shape.head_dim_k;
  HeadMoments result;
  Moments keys(dim);
  keys.add(rows.keys.data(), rows.n, dim);
  result.key_mean = keys.mean();
  result.key_covariance = keys.covariance();
  result.query_moment =
      group_query_moment(shape, head, queries, options.normalise_queries, result.key_covariance);
  HeadDiagnostics& seen = result.diagnostics;
  seen.inflation_keys = inflation_of(rows.keys.data(), rows.n, dim, dim);
  const std::int64_t stride = static_cast<std::int64_t>(shape.n_heads) * dim;
  for (int g = 0; g < shape.group(); ++g) {
    const float* q = queries.q + static_cast<std::ptrdiff_t>(head * shape.group() + g) * dim;
    seen.inflation_queries =
        std::max(seen.inflation_queries, inflation_of(q, queries.n_tokens, stride, dim));
  }
  if (!options.shrink) return result;
  // Queries of one token in different heads are no further samples.
  shrink_to(result.query_moment, static_cast<double>(queries.n_tokens) / seen.inflation_queries,
            seen.shrinkage_queries);
  shrink_to(result.key_covariance, static_cast<double>(rows.n) / seen.inflation_keys,
            seen.shrinkage_keys);
  return result;
}

Result<double> relative_error(CodecKind kind, const HeadMoments& moments, int rank) {
  VOLVELLE_ASSIGN_OR_RETURN(const ScoreCodec codec, make_score_codec(kind, moments.query_moment,
                                                                     moments.key_covariance, rank));
  return score_error(codec.projector(), moments.query_moment, moments.key_covariance) /
         score_power(moments.query_moment, moments.key_covariance);
}

Status check_options(const AttentionShape& shape, std::int64_t n_rows, const QuerySample& queries,
                     const IndexOptions& options) {
  const auto error = [](const std::string& message) {
    return Error{ErrorCode::kInvalidArgument, "index: " + message};
  };
  if (options.rank < 0 || options.rank > shape.head_dim_k) {
    return error("expected a rank from 1 to the head dimension " +
                 std::to_string(shape.head_dim_k) + ", got " + std::to_string(options.rank));
  }
  if (!(options.bits > 0.0) || options.bits > 8.0 || options.value_bits < 0.0 ||
      options.value_bits > 8.0) {
    return error("expected 1 to 8 bits a coordinate");
  }
  if (options.dither != Dither::kNone && (options.norms || options.rank > 0 || options.bits < 2.0))
    return error("a dither needs 2 bits or more for every coordinate, and no norms");
  if (options.frame.block > 0 &&
      (options.norms || options.dither != Dither::kNone || queries.positions == nullptr ||
       2 * std::ssize(options.frame.angles) > shape.head_dim_k)) {
    return error("codes in the frames of blocks have no bounds, and need positions of queries");
  }
  if (n_rows <= options.sinks || queries.n_tokens < 1 || queries.q == nullptr)
    return error("expected rows and queries to make a code from, got " + std::to_string(n_rows) +
                 " rows and queries of " + std::to_string(queries.n_tokens) + " tokens");
  return {};
}

}  // namespace

Result<LayerCode> make_layer_code(const AttentionShape& shape,
                                  std::span<const KeyValueSegment> segments, std::int64_t n_rows,
                                  const QuerySample& given, const IndexOptions& options,
                                  std::vector<HeadDiagnostics>* diagnostics) {
  VOLVELLE_RETURN_IF_ERROR(check_options(shape, n_rows, given, options));
  std::vector<float> turned;
  QuerySample queries = given;
  if (options.frame.block > 0) {
    turned = turned_queries(shape, given, options.frame);
    queries.q = turned.data();
  }
  LayerCode code;
  code.norms = options.norms;
  code.dither = options.dither;
  code.frame = options.frame;
  code.n_rows = n_rows;
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    VOLVELLE_ASSIGN_OR_RETURN(const SpreadRows rows,
                              spread_rows(shape, segments, head, n_rows, options));
    HeadMoments moments = moments_of(shape, head, rows, queries, options);
    const int rank = options.rank > 0 ? options.rank : shape.head_dim_k;
    VOLVELLE_ASSIGN_OR_RETURN(
        const ScoreCodec codec,
        make_score_codec(options.kind, moments.query_moment, moments.key_covariance, rank));
    const CodeWidths widths =
        options.rank > 0 ? uniform_widths(options.rank, 8, kKeyCodeUnit)
        : options.bits >= 8.0
            ? uniform_widths(shape.head_dim_k, 8, kKeyCodeUnit)
            : water_fill(codec.lambda, options.bits + kSpareKeyBits / shape.head_dim_k,
                         kKeyCodeUnit, options.dither);
    code.keys.push_back(make_key_code(codec, moments.key_mean, widths, options.dither));
    if (options.value_bits > 0.0) {
      Moments values(shape.head_dim_v);
      values.add(rows.values.data(), rows.n, shape.head_dim_v);
      VOLVELLE_ASSIGN_OR_RETURN(
          RowCode value_code,
          make_value_code(values.covariance(), values.mean(), options.value_bits));
      code.values.push_back(std::move(value_code));
    }
    if (diagnostics == nullptr) continue;
    const int few = std::min(32, shape.head_dim_k);
    VOLVELLE_ASSIGN_OR_RETURN(moments.diagnostics.predicted_error,
                              relative_error(CodecKind::kBalanced, moments, few));
    VOLVELLE_ASSIGN_OR_RETURN(moments.diagnostics.principal_error,
                              relative_error(CodecKind::kPrincipal, moments, few));
    moments.diagnostics.key_spikes =
        count_spikes(rows.keys.data(), rows.n, shape.head_dim_k, moments.key_covariance);
    diagnostics->push_back(moments.diagnostics);
  }
  if ((options.norms || options.dither != Dither::kNone) && !code.codes_all()) {
    return Error{ErrorCode::kInvalidArgument,
                 "index: a bound needs every coordinate coded; use more bits and no rank"};
  }
  return code;
}

}  // namespace volvelle
