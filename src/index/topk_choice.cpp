// Third phase, one KV head at a time: which rows are read exactly.
//
//   probability of row j for head h:  f_h 2^(m_tile - M_h) weight_hj,  f_h = 1 / Z_h
//   Z_h = exact part (sinks, recent rows) + all coded weights
//   bound for a choice S (docs/numerics.md):  sum over rows not in S of w_j (e^eps_j - 1) / Z'_h
//   Z'_h = exact part + coded weights, those of S lowered by e^-eps; at most what the read divides
//   by
#include <cmath>
#include <limits>

#include "index/select.hpp"
#include "index/topk_choice.hpp"

namespace volvelle {
namespace {

HeadSums sum_head(const TopkRead& read, int kv_head, int g) noexcept {
  const TopkWorkspace::Impl& w = read.workspace;
  const int head = kv_head * read.group() + g;
  const RowStates recent =
      TopkWorkspace::Impl::group_states(w.recent, kv_head, read.shape()).from(g);
  const double base = static_cast<double>(w.queries[static_cast<std::size_t>(head)].base);
  float* const m = w.tile_m + head * w.capacity_tiles;
  const float* d = w.tile_d + head * w.capacity_tiles;
  const float* error = w.tile_error + head * w.capacity_tiles;
  HeadSums sums;
  sums.top = static_cast<double>(*recent.m);
  for (std::int64_t tile = 0; tile < read.n_tiles; ++tile)
    sums.top = std::max(sums.top, base + static_cast<double>(m[tile]));
  sums.exact =
      static_cast<double>(*recent.d) * std::exp2(static_cast<double>(*recent.m) - sums.top);
  // From here on tile_m holds what turns a tile's weights into those relative to the top.
  exp2_all(m, read.n_tiles, static_cast<float>(base - sums.top), m);
  for (std::int64_t tile = 0; tile < read.n_tiles; ++tile) {
    const auto factor = static_cast<double>(m[tile]);
    sums.coded += factor * static_cast<double>(d[tile]);
    if (read.wants_bound() && read.policy.certificate != CertificateKind::kDithered)
      sums.error += factor * static_cast<double>(error[tile]);
  }
  return sums;
}

/// Sum over the group's heads of the coded probability of each row.
void combine(const Choice& choice) noexcept {
  const TopkRead& read = choice.read;
  TopkWorkspace::Impl& w = read.workspace;
  float factors[kMaxGroup];
  for (std::int64_t tile = 0; tile < read.n_tiles; ++tile) {
    for (int g = 0; g < read.group(); ++g) {
      const HeadSums& sums = choice.sums[g];
      factors[g] = static_cast<float>(choice.tile_factor(g, tile) / (sums.exact + sums.coded));
    }
    const std::int64_t at = choice.kv_head * w.capacity_tiles + tile;
    combine_tile_weights(
        w.weights_of(choice.first_head()) + tile * kCodeTile, w.capacity_tiles * kCodeTile, factors,
        read.group(), w.combined + at * kCodeTile, w.block_max + at * (kCodeTile / kSelectBlock));
  }
}

std::int64_t select(const Choice& choice, std::int64_t k) noexcept {
  const TopkRead& read = choice.read;
  TopkWorkspace::Impl& w = read.workspace;
  const std::int64_t first = choice.kv_head * w.capacity_tiles;
  constexpr std::int64_t kBlocks = kCodeTile / kSelectBlock;
  return select_largest(w.combined + first * kCodeTile, w.block_max + first * kBlocks,
                        read.n_coded_rows(), k, choice.rows(), w.scratch + first * kCodeTile);
}

/// One row's radius and the constant that goes with it, as error_sum() uses them.
double row_error(const TopkRead& read, int head, const HeadTile& tile, std::int64_t t) noexcept {
  const PreparedQuery& query = read.workspace.queries[static_cast<std::size_t>(head)];
  const auto scale = static_cast<double>(f16_to_f32(tile.key_scales[t]));
  if (read.policy.certificate != CertificateKind::kExact)
    return scale * static_cast<double>(query.sigma);
  return static_cast<double>(f16_to_f32(tile.key_norms[t])) * static_cast<double>(query.norm) +
         static_cast<double>(query.slack) * scale + static_cast<double>(query.shift);
}

/// Bound (or estimate) of the total variation for head g if the n chosen rows are read exactly.
double error_of(const Choice& choice, int g, std::int64_t n) noexcept {
  const TopkRead& read = choice.read;
  const TopkWorkspace::Impl& w = read.workspace;
  const int head = choice.first_head() + g;
  const bool proved = read.policy.certificate == CertificateKind::kExact;
  const HeadSums& sums = choice.sums[g];
  if (!std::isfinite(sums.error)) return std::numeric_limits<double>::infinity();
  double chosen_error = 0.0;  // shares of the chosen rows, lowered
  double chosen_loss = 0.0;   // what Z' loses when their weights are lowered
  double chosen = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = choice.rows()[i];
    const std::int64_t tile = row / kCodeTile;
    const HeadTile codes = read.index.head_tile(choice.kv_head, tile);
    const double weight =
        static_cast<double>(w.weights_of(head)[row]) * choice.tile_factor(g, tile);
    const double x = row_error(read, head, codes, row % kCodeTile);
    chosen += weight;
    if (proved) {
      // What error_sum() took for it, up to float rounding; a little less is taken off.
      chosen_error += weight * (x + 0.5 * x * x * std::exp(x)) * (1.0 - 1e-5);
      chosen_loss += weight * -std::expm1(-x);
    } else {
      chosen_error += weight * 0.4 * x * std::exp(1.5 * x * x);
    }
  }
  const double rest = std::max(0.0, sums.error * (1.0 + 1e-5) - chosen_error);
  if (read.policy.coded_tail) {
    const double total = (sums.exact + sums.coded - chosen_loss) * (1.0 - 1e-5);
    return total > 0.0 ? rest / total : 1.0;
  }
  // Without a tail the variation is the mass left out, whose coded weights may be wrong as well.
  const double left = std::max(0.0, sums.coded * (1.0 + 1e-5) - chosen);
  const double kept = std::max(1e-300, sums.exact + chosen - chosen_loss);
  return (left + rest) / (left + rest + kept);
}

double worst_error(const Choice& choice, std::int64_t n) noexcept {
  if (choice.read.policy.certificate == CertificateKind::kDithered)
    return worst_dithered_error(choice, n);
  double worst = 0.0;
  for (int g = 0; g < choice.read.group(); ++g) {
    const double error = error_of(choice, g, n);
    worst = std::isfinite(error) ? std::max(worst, error) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

struct Chosen {
  std::int64_t n = 0;
  double error = 0.0;  // bound or estimate, if one was computed
  bool dense = false;
};

/// The least k on the doubling grid whose error is small enough for all heads of the group.
Chosen choose(const Choice& choice) noexcept {
  const TopkPolicy& policy = choice.read.policy;
  Chosen chosen{select(choice, policy.k), 0.0, false};
  if (!choice.read.wants_bound()) return chosen;
  chosen.error = worst_error(choice, chosen.n);
  if (policy.max_error <= 0.0) return chosen;
  // Beyond three fifths of the rows reading all of them costs no more.
  const std::int64_t most = choice.read.n_coded_rows() * 3 / 5;
  for (std::int64_t k = 2 * policy.k; !(chosen.error <= policy.max_error) && k <= most; k *= 2) {
    chosen.n = select(choice, k);
    chosen.error = worst_error(choice, chosen.n);
  }
  chosen.dense = !(chosen.error <= policy.max_error);
  return chosen;
}

void count(const Choice& choice, const Chosen& chosen) noexcept {
  const TopkRead& read = choice.read;
  const AttentionShape& shape = read.shape();
  ReadStatistics& s = read.thread().statistics;
  const std::int64_t exact =
      read.n_visible() - read.n_coded_rows() + std::min(read.policy.sinks, read.n_coded_rows());
  const std::int64_t rows = chosen.dense ? read.n_visible() : exact + chosen.n;
  const auto row = static_cast<std::int64_t>(row_bytes(shape.k_type, shape.head_dim_k) +
                                             row_bytes(shape.v_type, shape.head_dim_v));
  // A bound of 1 or more says nothing, as no variation is larger.
  const bool proved =
      read.policy.certificate != CertificateKind::kNone && (chosen.dense || chosen.error < 1.0);
  read.workspace.bounds[static_cast<std::size_t>(choice.kv_head)] =
      chosen.dense ? 0.0
      : proved     ? chosen.error
                   : std::numeric_limits<double>::infinity();
  s.reads += read.group();
  s.rows_seen += read.n_visible();
  s.rows_read += rows;
  s.bytes_read += rows * row + read.n_tiles * static_cast<std::int64_t>(
                                                  read.index.code().head_bytes(choice.kv_head));
  s.bytes_dense += read.n_visible() * row;
  if (chosen.dense) {
    s.dense += read.group();
    s.certified += proved ? read.group() : 0;  // exact reads have nothing to prove
    return;
  }
  s.sum_bound += std::min(chosen.error, 1.0) * read.group();
  if (proved) {
    s.certified += read.group();
    s.worst_bound = std::max(s.worst_bound, chosen.error);
  }
}

/// Chosen rows leave the tail: their coded weights become 0.
void take_out(const Choice& choice, std::int64_t n) noexcept {
  for (int g = 0; g < choice.read.group(); ++g) {
    float* weights = choice.read.workspace.weights_of(choice.first_head() + g);
    for (std::int64_t i = 0; i < n; ++i) weights[choice.rows()[i]] = 0.0f;
  }
}

}  // namespace

void choose_rows(const TopkRead& read) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const Items heads = share_of(read.shape().n_kv_heads, read);
  for (int kv_head = static_cast<int>(heads.begin); kv_head < heads.end; ++kv_head) {
    Choice choice{read, kv_head, {}};
    for (int g = 0; g < read.group(); ++g) {
      choice.sums[g] = sum_head(read, kv_head, g);
      // A score that is no number has no weight, so it would not show in the output.
      const float base = w.queries[static_cast<std::size_t>(choice.first_head() + g)].base;
      if (!std::isfinite(choice.sums[g].coded) || !std::isfinite(base))
        w.not_finite.store(true, std::memory_order_release);
      // The tail's weights are relative to the largest score of any kind, so nothing overflows.
      w.top[static_cast<std::size_t>(choice.first_head() + g)] =
          static_cast<float>(choice.sums[g].top);
      w.total[static_cast<std::size_t>(choice.first_head() + g)] =
          static_cast<float>(choice.sums[g].exact + choice.sums[g].coded);
    }
    combine(choice);
    const Chosen chosen = choose(choice);
    const auto at = static_cast<std::size_t>(kv_head);
    w.dense[at] = chosen.dense ? 1 : 0;
    w.n_selected[at] = chosen.dense ? 0 : chosen.n;
    if (!chosen.dense) take_out(choice, chosen.n);
    count(choice, chosen);
  }
}

}  // namespace volvelle
