// Certificates over many reads: random, clustered and discrete rows, queries turned to the coding
// error of a row. Every read is checked against exact attention in double; none may break its
// bound. 100,000 reads by default, ten million with VOLVELLE_FULL=1.
#include <cstdlib>
#include <map>

#include "index/read_audit.hpp"
#include "law/topk_case.hpp"

namespace volvelle::law {
namespace {

enum class Rows { kNormal, kClusters, kDiscrete, kEqual, kOneHeavy };

void fill_rows(TopkCase& problem, Rows kind, std::mt19937& random) {
  std::normal_distribution<float> normal;
  auto& k = problem.plain.k();
  const auto dim = static_cast<std::size_t>(problem.plain.task().shape.head_dim_k);
  std::vector<float> centers(5 * dim);
  for (float& x : centers) x = normal(random);
  const float width = random() % 2 == 0 ? 0.0f : 0.03f;
  for (std::size_t i = 0; i < k.size(); ++i) {
    const std::size_t row = i / dim;
    if (kind == Rows::kClusters) k[i] = centers[row % 5 * dim + i % dim] + width * normal(random);
    if (kind == Rows::kDiscrete) k[i] = static_cast<float>(static_cast<int>(random() % 3) - 1);
    if (kind == Rows::kEqual) k[i] = centers[i % dim];
    if (kind == Rows::kOneHeavy)
      k[i] = row == k.size() / dim / 2 ? centers[i % dim] : 0.1f * normal(random);
  }
  problem.plain.cut({problem.plain.options().n_rows / 3});
}

/// Turns the queries to the coding error of one row: what a deterministic bound must stand.
void aim_at_error(TopkCase& problem, const CodeIndex& index, std::mt19937& random) {
  const AttendTask task = problem.plain.task();
  const auto dim = static_cast<std::size_t>(task.shape.head_dim_k);
  const RowCode& code = index.code().keys[0];
  const auto row =
      static_cast<std::int64_t>(random() % static_cast<unsigned>(index.n_tiles() * kCodeTile));
  const HeadTile tile = index.head_tile(0, row / kCodeTile);
  const CodedRows coded{const_cast<std::byte*>(tile.key_levels),
                        const_cast<std::uint16_t*>(tile.key_scales), nullptr, tile.key_salt};
  const std::vector<float> x =
      decode_row(code, CodeSide::kKeys, coded, static_cast<int>(row % kCodeTile));
  std::vector<double> error(dim);
  double length = 1e-30;
  for (std::size_t j = 0; j < dim; ++j) {
    const float k = problem.plain.k()[static_cast<std::size_t>(row) * dim + j];
    error[j] = f16_to_f32(f32_to_f16(k)) - static_cast<double>(code.mean[j]);
    for (std::size_t i = 0; i < x.size(); ++i)
      error[j] -= static_cast<double>(x[i]) * static_cast<double>(code.decode[i * dim + j]);
    length += error[j] * error[j];
  }
  const double size = 0.5 * static_cast<double>(1 << random() % 6);
  for (std::size_t j = 0; j < dim; ++j)
    problem.plain.q()[j] = static_cast<float>(size * error[j] / std::sqrt(length));
}

struct Seen {
  ReadStatistics statistics;
  double closest = 0.0;  // variation over bound
  std::map<int, double> closest_dithered;
  std::map<int, std::int64_t> dithered;  // certified reads, read in part, by bits a coordinate
};

void run_problem(std::uint32_t seed, std::int64_t n_queries, Seen& seen) {
  std::mt19937 random(seed);
  const int group = 1 + static_cast<int>(random() % 3);
  const int dim = random() % 2 == 0 ? 16 : 32;
  const AttentionShape shape{.n_heads = group,
                             .n_kv_heads = 1,
                             .head_dim_k = dim,
                             .head_dim_v = 16,
                             .k_type = ElementType::kF16,
                             .v_type = ElementType::kF16,
                             .scale = 0.25f};
  const auto n = static_cast<std::int64_t>(140 + random() % 260);
  TopkCase problem(shape, n, seed);
  fill_rows(problem, static_cast<Rows>(seed % 5), random);
  const bool dithered = random() % 2 == 0;
  IndexOptions options;
  const int bits = dithered ? 4 + static_cast<int>(random() % 3) : 8;
  options.bits = bits;
  options.norms = !dithered;
  options.dither = dithered ? Dither::kSubtractive : Dither::kNone;
  const CodeIndex index = problem.make_index(options, seed);
  TopkPolicy policy{.k = static_cast<std::int64_t>(1 + random() % 64),
                    .certificate = dithered ? CertificateKind::kDithered : CertificateKind::kExact,
                    .coded_tail = dithered || random() % 4 != 0};
  const double limits[] = {0.0, 0.05, 0.01};
  policy.max_error = limits[random() % 3];
  const AttendTask task = problem.plain.task();
  if (!can_read_topk(task, index, policy)) return;
  TopkWorkspace workspace = make_topk_workspace(shape, 1, index.n_tiles());
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < n_queries; ++i) {
    const float amplitude = 0.1f * static_cast<float>(1 << random() % 7);
    for (float& x : problem.plain.q()) x = amplitude * normal(random);
    // A dithered certificate promises nothing for queries that know the dither.
    if (!dithered && i % 4 == 0) aim_at_error(problem, index, random);
    topk_attend(task, index, policy, workspace, 0, 1);
    audit_read(task, index, policy, workspace);
    const double bound = workspace.impl().bounds[0];
    const ReadStatistics statistics = workspace.take_statistics();
    if (bound > 1e-5 && std::isfinite(bound)) {
      seen.closest = std::max(seen.closest, statistics.worst_variation / bound);
      if (dithered) {
        seen.closest_dithered[bits] =
            std::max(seen.closest_dithered[bits], statistics.worst_variation / bound);
        seen.dithered[bits] += statistics.certified - statistics.dense;
      }
    }
    ASSERT_EQ(statistics.violations, 0)
        << "seed " << seed << " query " << i << (dithered ? " dithered" : " exact")
        << ", variation " << statistics.worst_variation << " of a bound of " << bound;
    if (policy.max_error > 0.0) {
      ASSERT_LE(statistics.worst_variation, policy.max_error) << "seed " << seed << " query " << i;
    }
    seen.statistics.add(statistics);
  }
}

TEST(CertificateVolume, NoReadBreaksItsBound) {
  const char* const full = std::getenv("VOLVELLE_FULL");
  const std::int64_t wanted = full != nullptr && *full == '1' ? 10'000'000 : 100'000;
  Seen seen;
  for (std::uint32_t seed = 0; seen.statistics.audited < wanted; ++seed) {
    run_problem(seed, 200, seen);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(seen.statistics.violations, 0);
  EXPECT_GT(seen.statistics.certified, seen.statistics.audited / 2);
  for (const int bits : {4, 5, 6}) {
    EXPECT_GT(seen.closest_dithered[bits], 0.3) << bits;
    EXPECT_GT(seen.dithered[bits], seen.statistics.audited / 40) << bits;
  }
  EXPECT_GT(seen.closest, 0.3);  // bounds that are never near the truth would test nothing
  RecordProperty("audited", std::to_string(seen.statistics.audited));
  RecordProperty("closest", std::to_string(seen.closest));
  std::printf("%lld reads, %lld certified, variation at most %.3f of its bound\n",
              static_cast<long long>(seen.statistics.audited),
              static_cast<long long>(seen.statistics.certified), seen.closest);
  for (const auto& [bits, closest] : seen.closest_dithered)
    std::printf("dithered %d bits: %lld certified, at most %.3f\n", bits,
                static_cast<long long>(seen.dithered[bits]), closest);
}

// The audit itself: what it finds is what another computation finds, and it sees broken bounds.
TEST(ReadAudit, FindsWhatTheWeightsAre) {
  for (const bool tail : {true, false}) {
    AttentionShape shape{
        .n_heads = 4, .n_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 32, .scale = 0.125f};
    TopkCase problem(shape, 900, 3);
    const CodeIndex index = problem.make_index({.bits = 2.0});
    const TopkPolicy policy{.k = 20, .coded_tail = tail};
    const AttendTask task = problem.plain.task();
    TopkWorkspace workspace = make_topk_workspace(shape, 1, index.n_tiles());
    topk_attend(task, index, policy, workspace, 0, 1);
    double sum = 0.0, worst = 0.0;
    for (int head = 0; head < 4; ++head) {
      const double variation =
          used_variation(task, head, problem.plain, workspace, policy, (900 - 64) / kCodeTile);
      sum += variation;
      worst = std::max(worst, variation);
    }
    audit_read(task, index, policy, workspace);
    const ReadStatistics first = workspace.take_statistics();
    EXPECT_EQ(first.audited, 4);
    EXPECT_NEAR(first.sum_variation, sum, 1e-5);
    EXPECT_NEAR(first.worst_variation, worst, 1e-5);
    EXPECT_GT(first.sum_output_error, 0.0);
    EXPECT_EQ(first.violations, 0);  // nothing was promised
    std::fill(workspace.impl().bounds.begin(), workspace.impl().bounds.end(), worst / 2);
    audit_read(task, index, policy, workspace);
    EXPECT_GT(workspace.take_statistics().violations, 0);
  }
}

}  // namespace
}  // namespace volvelle::law
