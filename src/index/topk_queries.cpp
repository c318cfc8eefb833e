// First phase: queries in the coordinates of the code, rounded to bytes, with what bounds need to
// know about the rounding; and the rows that are always read exactly.
//
//   score of a coded row, base 2:  base + scale * (sum over widths of gain * sum q_i level_i +
//   offset) a = D^T q in double; alpha_i = a_i step_i;  alpha ~ gain * q_i, gain = max |alpha| /
//   127 of a width second plane: what the first left over, 254 times finer
#include <cmath>
#include <numeric>

#include "attention/rows.hpp"
#include "bounds/dithered_variation.hpp"
#include "index/block_frame.hpp"
#include "index/topk_phases.hpp"
#include "kernels/dither.hpp"
#include "kernels/project.hpp"

namespace volvelle {
namespace {

struct WidthRange {
  int begin;
  int end;
  double center;  // half - 1/2 of its levels
};

/// Rounds the coordinates of one width to one plane of bytes; `rest` loses what the plane holds.
void round_plane(double* rest, const WidthRange& range, double gain, std::int8_t* plane) noexcept {
  for (int i = range.begin; i < range.end; ++i) {
    const double q = gain > 0.0 ? std::clamp(std::nearbyint(rest[i] / gain), -127.0, 127.0) : 0.0;
    plane[i] = static_cast<std::int8_t>(q);
    rest[i] -= gain * q;
  }
}

/// Bounds of the error of a coded score per unit of a row's scale: what rounding left of the query,
/// and the float sums over the widths (each partial sum is exact, at most n_sums are added).
double score_slack(const CodeWidths& widths, const double* rest, double magnitude) noexcept {
  constexpr double kUnit = 0x1p-24;
  const double n_sums = 8.0 + widths.n8 / 2.0 + widths.n4 / 32.0 + widths.n2 / 160.0;
  double left = 0.0;
  for (int i = 0; i < widths.total(); ++i)
    left += std::abs(rest[i]) * (std::exp2(widths.width_of(i) - 1) - 0.5);
  return left + magnitude * n_sums * kUnit / (1.0 - n_sums * kUnit);
}

/// A query as the exact kernel wants it: base 2, padded.
void scale_query(const TopkRead& read, const float* q, float* scaled) noexcept {
  const AttentionShape& shape = read.shape();
  for (int j = 0; j < shape.head_dim_k; ++j) scaled[j] = q[j] * (shape.scale * kLog2E);
  std::fill(scaled + shape.head_dim_k, scaled + read.workspace.q_stride, 0.0f);
}

struct CodedQuery {
  double norm = 0.0;      // |a|^2
  double variance = 0.0;  // of a coded score per unit of scale, uniform errors
};

/// alpha_i = a_i step_i, base 2. Bounds need a in double; for choosing rows floats are enough.
CodedQuery code_query(const TopkRead& read, const RowCode& code, const float* q,
                      double* alpha) noexcept {
  const double scale = static_cast<double>(read.shape().scale) / kLn2;
  CodedQuery result;
  for (int i = 0; i < code.widths.total(); ++i) {
    const float* basis = code.decode.data() + static_cast<std::ptrdiff_t>(i) * code.dim;
    double a = 0.0;
    if (read.n_planes() == 1) {
      a = static_cast<double>(dot(q, basis, code.dim));
    } else {
      for (int j = 0; j < code.dim; ++j)
        a += static_cast<double>(q[j]) * static_cast<double>(basis[j]);
    }
    const double step = static_cast<double>(code.step[static_cast<std::size_t>(i)]);
    result.norm += a * a;
    result.variance += a * a * step * step / 12.0;
    alpha[i] = a * scale * step;
  }
  return result;
}

/// Rounds alpha to planes of bytes. Leaves what is left of it, and returns the sum of |alpha| times
/// twice the largest distance of a level from its center.
double round_query(const TopkRead& read, const CodeWidths& widths, int head,
                   double* alpha) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const WidthRange ranges[3] = {{0, widths.n8, 127.5},
                                {widths.n8, widths.n8 + widths.n4, 7.5},
                                {widths.n8 + widths.n4, widths.total(), 1.5}};
  double gains[3];
  double magnitude = 0.0;
  for (int c = 0; c < 3; ++c) {
    double largest = 0.0;
    for (int i = ranges[c].begin; i < ranges[c].end; ++i) {
      largest = std::max(largest, std::abs(alpha[i]));
      magnitude += 2.0 * std::abs(alpha[i]) * ranges[c].center;
    }
    gains[c] = static_cast<double>(static_cast<float>(largest / 127.0));
  }
  for (int plane = 0; plane < read.n_planes(); ++plane) {
    const int at = head * kScanPlanes + plane;
    std::int8_t* bytes = w.planes + at * w.code_stride;
    double offset = 0.0;
    for (int c = 0; c < 3; ++c) {
      round_plane(alpha, ranges[c], gains[c], bytes);
      w.gains[at * 3 + c] = static_cast<float>(gains[c]);
      double sum = 0.0;
      for (int i = ranges[c].begin; i < ranges[c].end; ++i) sum += bytes[i];
      offset -= gains[c] * sum * ranges[c].center;
      gains[c] = static_cast<double>(static_cast<float>(gains[c] / 254.0));
    }
    w.offsets[at] = static_cast<float>(offset);
  }
  return magnitude;
}

/// What the dither's numbers are multiplied with; the largest error they can make, base 2. Their
/// constant part goes into the offset of the first plane, once that is known.
double prepare_dither(const TopkRead& read, int head, int n, const double* alpha) noexcept {
  float* factors = read.workspace.dithers + head * read.workspace.code_stride;
  double reach = 0.0;
  for (int i = 0; i < n; ++i) {
    factors[i] = static_cast<float>(alpha[i] / kDitherPoints);
    reach += 0.5 * std::abs(alpha[i]);
  }
  return reach;
}

/// Rounds float coordinates of a query to one plane of bytes; what the centers add up to, with its
/// sign.
float round_coordinates(const CodeWidths& widths, const float* alpha, std::int8_t* plane,
                        float* gains) noexcept {
  const int ends[3] = {widths.n8, widths.n8 + widths.n4, widths.total()};
  constexpr float kCenters[3] = {127.5f, 7.5f, 1.5f};
  float offset = 0.0f;
  for (int c = 0, begin = 0; c < 3; begin = ends[c++]) {
    float largest = 0.0f;
    for (int i = begin; i < ends[c]; ++i) largest = std::max(largest, std::abs(alpha[i]));
    gains[c] = largest / 127.0f;
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    int sum = 0;
    for (int i = begin; i < ends[c]; ++i) {
      const float q = std::nearbyint(alpha[i] * inverse);
      plane[i] = static_cast<std::int8_t>(q >= -127.0f && q <= 127.0f ? q : 0.0f);
      sum += plane[i];
    }
    offset -= gains[c] * static_cast<float>(sum) * kCenters[c];
  }
  return offset;
}

/// A row turned back by the middle of a tile's block, in the thread's scratch.
const float* turned_row(const TopkRead& read, std::int64_t tile, const float* row) noexcept {
  float* const turned = read.thread().turned;
  std::copy_n(row, read.shape().head_dim_k, turned);
  turn_row_back(read.index.code().frame, read.index.rotation(tile), turned);
  return turned;
}

void prepare_query(const TopkRead& read, int kv_head, int head) noexcept {
  constexpr double kUp = 1.0 + 0x1p-20;  // stored bounds are rounded up
  TopkWorkspace::Impl& w = read.workspace;
  const RowCode& code = read.index.code().keys[static_cast<std::size_t>(kv_head)];
  const float* q =
      read.task.q + read.token * read.task.q_token_stride + head * read.task.q_head_stride;
  scale_query(read, q, w.scaled + head * w.q_stride);
  // What is said of all rows of an anchored read is that of the newest block.
  if (read.anchored()) q = turned_row(read, read.n_tiles - 1, q);
  double* alpha = read.thread().products.data();
  const CodedQuery coded = code_query(read, code, q, alpha);
  const bool dithered = read.policy.certificate == CertificateKind::kDithered;
  const int n = code.widths.total();
  const double constant =
      dithered ? std::accumulate(alpha, alpha + n, 0.0) * 0.5 / kDitherPoints : 0.0;
  const double reach = dithered ? prepare_dither(read, head, n, alpha) : 0.0;
  const double magnitude = round_query(read, code.widths, head, alpha);
  w.offsets[head * kScanPlanes] -= static_cast<float>(constant);
  // Floats of the dither's factors and their sum; a lattice instead of a continuous dither.
  const double dither_slack = reach * (2.0 / kDitherPoints + 2.0 * float_sum_slack(n + 8.0));
  double base = 0.0;
  for (int j = 0; j < code.dim; ++j)
    base += static_cast<double>(q[j]) * static_cast<double>(code.mean[static_cast<std::size_t>(j)]);
  const auto scale = static_cast<double>(read.shape().scale);
  PreparedQuery& prepared = w.queries[static_cast<std::size_t>(head)];
  // With a block frame each block has its own, in the scores of its tiles.
  prepared.base = read.anchored() ? 0.0f : static_cast<float>(base * scale / kLn2);
  prepared.sigma = static_cast<float>(std::sqrt(coded.variance) * std::abs(scale));
  prepared.norm = static_cast<float>(std::sqrt(coded.norm) * std::abs(scale) * kUp);
  prepared.slack =
      static_cast<float>((score_slack(code.widths, alpha, magnitude) + dither_slack) * kLn2 * kUp);
  prepared.reach = static_cast<float>(reach * kLn2 * kUp);
  // The base and the tile's factor are floats: a few units in the last place of the score itself.
  prepared.shift = static_cast<float>(std::abs(base * scale) * 0x1p-21 + 0x1p-20);
}

}  // namespace

CodedQueries turn_queries(const TopkRead& read, int kv_head, std::int64_t tile) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  TopkWorkspace::Impl::Thread& t = read.thread();
  const RowCode& code = read.index.code().keys[static_cast<std::size_t>(kv_head)];
  const int n = code.widths.total();
  for (int g = 0; g < read.group(); ++g) {
    // Scaled queries are in base 2 already.
    const float* turned =
        turned_row(read, tile, w.scaled + (kv_head * read.group() + g) * w.q_stride);
    std::fill_n(t.coordinates, code.stride(), 0.0f);
    add_combination(turned, code.dim, read.index.query_map(kv_head), code.stride(), n,
                    t.coordinates);
    for (int i = 0; i < n; ++i) t.coordinates[i] *= code.step[static_cast<std::size_t>(i)];
    const int at = g * kScanPlanes;
    t.block_offsets[at] = round_coordinates(
        code.widths, t.coordinates, t.block_planes + at * w.code_stride, t.block_gains + at * 3);
    t.block_bases[g] = dot(turned, code.mean.data(), code.dim);
    if (!std::isfinite(t.block_bases[g])) w.not_finite.store(true, std::memory_order_release);
  }
  return {t.block_planes, t.block_gains, t.block_offsets, t.block_bases};
}

void prepare_queries(const TopkRead& read) noexcept {
  const int group = read.group();
  const Items heads = share_of(read.shape().n_kv_heads, read);
  for (int kv_head = static_cast<int>(heads.begin); kv_head < heads.end; ++kv_head) {
    for (int g = 0; g < group; ++g) prepare_query(read, kv_head, kv_head * group + g);
    const RowStates states =
        TopkWorkspace::Impl::group_states(read.workspace.recent, kv_head, read.shape());
    clear_states(states, group);
    attend_rows(read, kv_head, 0, std::min(read.policy.sinks, read.n_coded_rows()), states);
    attend_rows(read, kv_head, read.n_coded_rows(), read.n_visible(), states);
  }
}

}  // namespace volvelle
