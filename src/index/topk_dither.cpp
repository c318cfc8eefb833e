// The certificate of reads from dithered codes: sums over unread rows, exact scores of chosen ones.
#include <cmath>
#include <limits>

#include "attention/rows.hpp"
#include "bounds/dithered_variation.hpp"
#include "index/stored_rows.hpp"
#include "index/topk_choice.hpp"
#include "kernels/dither.hpp"

namespace volvelle {
namespace {

// What float sums of a tile's weights may lack.
constexpr double kUp = 1.0 + 1e-5;

/// The largest scale of all coded rows of a KV head.
float largest_scale(const Choice& choice) noexcept {
  float scale = 0.0f;
  for (std::int64_t tile = 0; tile < choice.read.n_tiles; ++tile)
    scale = std::max(scale, largest_key_scale(choice.read.index.head_tile(choice.kv_head, tile)));
  return scale;
}

/// One query head while its bound is made. Chosen rows have weight 0 in the workspace meanwhile;
/// their coded weights are kept aside.
class HeadBound {
 public:
  HeadBound(const Choice& choice, int g, std::int64_t n) noexcept
      : choice_(choice), g_(g), n_(n), head_(choice.first_head() + g) {
    float* const weights = workspace().weights_of(head_);
    for (std::int64_t i = 0; i < n; ++i)
      saved()[i] = std::exchange(weights[choice.rows()[i]], 0.0f);
  }
  ~HeadBound() {
    float* const weights = workspace().weights_of(head_);
    for (std::int64_t i = 0; i < n_; ++i) weights[choice_.rows()[i]] = saved()[i];
  }
  HeadBound(const HeadBound&) = delete;
  HeadBound& operator=(const HeadBound&) = delete;

  /// `scale`: the largest of all coded rows.
  double bound(float scale) noexcept {
    DitheredVariation variation(read_of_head(scale));
    double total = choice_.sums[g_].exact + add_unread(variation);
    for (std::int64_t i = 0; i < n_; ++i) {
      ReadRow row;
      if (!fill(i, row)) return std::numeric_limits<double>::infinity();
      total += row.weight;
      variation.add(row);
    }
    return variation.bound(total / kUp);
  }

 private:
  TopkWorkspace::Impl& workspace() const noexcept { return choice_.read.workspace; }
  const PreparedQuery& query() const noexcept {
    return workspace().queries[static_cast<std::size_t>(head_)];
  }
  float* saved() const noexcept {
    return workspace().saved + head_ * workspace().capacity_tiles * kCodeTile;
  }

  DitheredRead read_of_head(float scale) const noexcept {
    const TopkRead& read = choice_.read;
    const auto rows = static_cast<double>(read.n_coded_rows());
    DitheredRead head;
    head.sigma = static_cast<double>(query().sigma) * kUp;
    head.reach = static_cast<double>(query().reach) * kUp;
    head.slack = static_cast<double>(query().slack) * static_cast<double>(scale) +
                 static_cast<double>(query().shift);
    head.n_rows = rows;
    head.log_terms = std::log(4.0 * rows * read.group() / read.policy.delta);
    return head;
  }

  /// All unread rows; the sum of their weights.
  double add_unread(DitheredVariation& variation) const noexcept {
    const TopkRead& read = choice_.read;
    double total = 0.0;
    for (std::int64_t tile = 0; tile < read.n_tiles; ++tile) {
      const HeadTile codes = read.index.head_tile(choice_.kv_head, tile);
      const ProductSums sums =
          sum_products(workspace().weights_of(head_) + tile * kCodeTile, codes.key_scales);
      const double factor = choice_.tile_factor(g_, tile) * kUp;
      UnreadRows rows;
      rows.sum_wt = factor * static_cast<double>(sums.sum_wt);
      rows.sum_wt_squared = factor * factor * static_cast<double>(sums.sum_wt_squared);
      rows.max_w = factor * static_cast<double>(sums.max_w);
      rows.max_wt = factor * static_cast<double>(sums.max_wt);
      rows.max_t = static_cast<double>(largest_key_scale(codes));
      total += factor * static_cast<double>(sums.sum_w) / (kUp * kUp);
      variation.add(rows);
    }
    return total;
  }

  /// Exact weight and error of chosen row i. False if the row is not in the memory.
  bool fill(std::int64_t i, ReadRow& row) const noexcept {
    const TopkRead& read = choice_.read;
    const std::int64_t at = choice_.rows()[i];
    const AttentionShape& shape = read.shape();
    float* const key = read.thread().key;
    if (!StoredRows(shape, read.task.segments).load_keys(choice_.kv_head, at, 1, key)) return false;
    const float* q =
        read.task.q + read.token * read.task.q_token_stride + head_ * read.task.q_head_stride;
    double score = 0.0;
    for (int j = 0; j < shape.head_dim_k; ++j)
      score += static_cast<double>(q[j]) * static_cast<double>(key[j]);
    score *= static_cast<double>(shape.scale);
    row.weight = std::exp(score - choice_.sums[g_].top * kLn2);
    const std::int64_t tile = at / kCodeTile;
    row.t = static_cast<double>(
        f16_to_f32(read.index.head_tile(choice_.kv_head, tile).key_scales[at % kCodeTile]));
    const double coded = static_cast<double>(saved()[i]) * choice_.tile_factor(g_, tile);
    row.error = coded > 0.0 && row.weight > 0.0 ? std::log(coded / row.weight) : 0.0;
    return true;
  }

  const Choice& choice_;
  int g_;
  std::int64_t n_;
  int head_;
};

}  // namespace

double worst_dithered_error(const Choice& choice, std::int64_t n) noexcept {
  const float scale = largest_scale(choice);
  double worst = 0.0;
  for (int g = 0; g < choice.read.group(); ++g) {
    const double error = HeadBound(choice, g, n).bound(scale);
    worst = std::isfinite(error) ? std::max(worst, error) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace volvelle
