// Reads through an index against exact attention, and their certificates against the true
// variation.
#include <iterator>
#include <set>

#include "index/select.hpp"
#include "law/topk_case.hpp"

namespace volvelle::law {
namespace {

AttentionShape shape_of(int heads, int kv_heads, int dim, ElementType type = ElementType::kF16) {
  return {.n_heads = heads,
          .n_kv_heads = kv_heads,
          .head_dim_k = dim,
          .head_dim_v = dim,
          .k_type = type,
          .v_type = type,
          .scale = 1.0f / std::sqrt(static_cast<float>(dim))};
}

struct Outcome {
  std::vector<float> out;
  ReadStatistics statistics;
};

Outcome read(TopkCase& problem, const CodeIndex& index, const TopkPolicy& policy, int threads = 1) {
  const AttendTask task = problem.plain.task();
  TopkWorkspace workspace = make_topk_workspace(task.shape, threads, index.n_tiles());
  EXPECT_TRUE(can_read_topk(task, index, policy));
  topk_attend(task, index, policy, workspace, threads);
  EXPECT_FALSE(workspace.take_not_finite());
  return {problem.plain.out(), workspace.take_statistics()};
}

/// |a - b| over all outputs, relative to the length of b.
double relative_error(std::span<const float> a, std::span<const double> b) {
  double difference = 0.0;
  double length = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    length += b[i] * b[i];
  }
  return std::sqrt(difference / length);
}

TEST(TopkRead, AllRowsChosenIsExactAttention) {
  for (const ElementType type : {ElementType::kF16, ElementType::kF32, ElementType::kQ8_0}) {
    TopkCase problem(shape_of(6, 2, 64, type), 700, 1);
    const CodeIndex index = problem.make_index({});
    for (const bool tail : {true, false}) {
      const Outcome outcome = read(problem, index, {.k = 1000, .coded_tail = tail});
      const auto exact = reference_attend(problem.plain.task());
      for (std::size_t i = 0; i < exact.size(); ++i)
        ASSERT_NEAR(outcome.out[i], exact[i], problem.plain.tolerance());
      EXPECT_EQ(outcome.statistics.rows_read, 2 * 700);
    }
  }
}

TEST(TopkRead, TheTailIsAlmostExactAndMuchBetterThanNone) {
  for (const auto& [heads, kv, dim] :
       {std::tuple{3, 1, 64}, {4, 4, 80}, {8, 1, 128}, {4, 1, 256}, {14, 2, 96}}) {
    SCOPED_TRACE(std::to_string(dim));
    TopkCase problem(shape_of(heads, kv, dim), 1500, 2);
    const CodeIndex index = problem.make_index({});
    const auto exact = reference_attend(problem.plain.task());
    const double with_tail = relative_error(read(problem, index, {.k = 128}).out, exact);
    const double without =
        relative_error(read(problem, index, {.k = 128, .coded_tail = false}).out, exact);
    const IndexOptions fine{.bits = 8.0, .value_bits = 8.0};
    const CodeIndex precise = problem.make_index(fine);
    const double with_fine = relative_error(read(problem, precise, {.k = 128}).out, exact);
    EXPECT_LT(with_tail, 0.12);
    EXPECT_LT(with_tail, 0.5 * without);
    EXPECT_LT(with_fine, 0.02);
    EXPECT_LT(with_fine, with_tail);
  }
}

/// A rotation of half of the dimensions, as some models have it.
BlockFrame frame_of(int dim, bool half_split) {
  RopeConfig rope;
  rope.layout = half_split ? RopeLayout::kHalfSplit : RopeLayout::kAdjacentPairs;
  rope.rotated_dims = half_split ? dim / 2 : dim;
  return make_block_frame(rope).value();
}

// Keys turned to the middle of their blocks and queries turned for each block: with fine codes the
// scores are those of the rows, whatever the rotation.
TEST(TopkRead, AnchoredCodesGiveTheScoresOfTheRows) {
  for (const bool half_split : {false, true}) {
    TopkCase problem(shape_of(6, 2, 64), 1500, 11);
    const auto exact = reference_attend(problem.plain.task());
    const IndexOptions fine{.bits = 8.0, .value_bits = 8.0, .frame = frame_of(64, half_split)};
    const CodeIndex index = problem.make_index(fine);
    const Outcome outcome = read(problem, index, {.k = 128});
    EXPECT_LT(relative_error(outcome.out, exact), 0.02);
    const AttendTask task = problem.plain.task();
    TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
    topk_attend(task, index, {.k = 64}, workspace, 1);
    for (int head = 0; head < 6; ++head)
      EXPECT_LT(used_variation(task, head, problem.plain, workspace, {.k = 64}, (1500 - 64) / 64),
                0.01);
    for (const int threads : {2, 3, 7})
      EXPECT_EQ(read(problem, index, {.k = 128}, threads).out, outcome.out);
    // An estimate within a limit; no bound.
    EXPECT_LT(relative_error(read(problem, index, {.k = 16, .max_error = 0.02}).out, exact), 0.05);
    EXPECT_FALSE(can_read_topk(task, index, {.certificate = CertificateKind::kExact}));
  }
}

TEST(BlockFrame, TurnsBackWhatRotationDid) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const bool half_split : {false, true}) {
    const BlockFrame frame = frame_of(64, half_split);
    EXPECT_EQ(frame.middle(0), 128);
    EXPECT_EQ(frame.middle(255), 128);
    EXPECT_EQ(frame.middle(256), 384);
    std::vector<float> row(64);
    for (float& x : row) x = normal(random);
    std::vector<float> turned = row;
    // The rotation itself, from its definition, in double.
    const int n = half_split ? 16 : 32;
    for (int i = 0; i < n; ++i) {
      const double angle = 777.0 * std::pow(10000.0, -2.0 * i / (2 * n));
      float& x = turned[static_cast<std::size_t>(half_split ? i : 2 * i)];
      float& y = turned[static_cast<std::size_t>(half_split ? i + n : 2 * i + 1)];
      const double a = x, b = y;
      x = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
      y = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
    }
    frame.turn_back(777, turned.data());
    // Angles are floats: 777 rad may be off by 777 * 2^-24.
    for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(turned[i], row[i], 5e-4);
  }
  RopeConfig scaled;
  scaled.layout = RopeLayout::kHalfSplit;
  scaled.rotated_dims = 64;
  scaled.scaling = RopeScaling::kYarn;
  const auto refused = make_block_frame(scaled);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("anchor=block"), std::string::npos);
}

TEST(TopkRead, SameBitsForAnyNumberOfThreads) {
  TopkCase problem(shape_of(6, 2, 64), 3000, 3);
  const CodeIndex index = problem.make_index({.bits = 8.0, .norms = true});
  for (const TopkPolicy& policy :
       {TopkPolicy{.k = 64}, TopkPolicy{.k = 64, .max_error = 0.02},
        TopkPolicy{.k = 64, .max_error = 0.05, .certificate = CertificateKind::kExact}}) {
    const Outcome one = read(problem, index, policy, 1);
    for (const int threads : {2, 3, 7})
      EXPECT_EQ(read(problem, index, policy, threads).out, one.out);
  }
}

TEST(TopkRead, ChoosesTheRowsWithTheLargestCodedWeight) {
  TopkCase problem(shape_of(2, 1, 64), 1000, 4);
  const CodeIndex index = problem.make_index({.bits = 8.0});
  const AttendTask task = problem.plain.task();
  TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
  topk_attend(task, index, {.k = 64}, workspace, 1);
  const auto a = exact_weights(task, 0, problem.plain);
  const auto b = exact_weights(task, 1, problem.plain);
  std::vector<std::pair<double, int>> order;
  for (int r = 4; r < 896; ++r)  // the tiles whose last row is at least 64 rows back, no sinks
    order.emplace_back(-(a[static_cast<std::size_t>(r)] + b[static_cast<std::size_t>(r)]), r);
  std::sort(order.begin(), order.end());
  std::set<int> best;
  for (int i = 0; i < 64; ++i) best.insert(order[static_cast<std::size_t>(i)].second);
  const TopkWorkspace::Impl& w = workspace.impl();
  ASSERT_EQ(w.n_selected[0], 64);
  int hits = 0;
  for (int i = 0; i < 64; ++i)
    hits += best.count(w.selected[static_cast<std::size_t>(i)]) > 0 ? 1 : 0;
  EXPECT_GE(hits, 61);  // 8-bit codes and 8-bit queries: neighbours of the border may swap
}

TEST(TopkRead, RefusesWhatItCanNotRead) {
  TopkCase problem(shape_of(3, 1, 64), 400, 5);
  const CodeIndex index = problem.make_index({});
  AttendTask task = problem.plain.task();
  EXPECT_TRUE(can_read_topk(task, index, {}));
  EXPECT_FALSE(can_read_topk(task, CodeIndex(), {}));
  task.shape.soft_cap = 30.0f;
  EXPECT_FALSE(can_read_topk(task, index, {}));
  task = problem.plain.task();
  const VisibleRows windowed{4, 200, 400};
  task.visible = std::span(&windowed, 1);
  EXPECT_FALSE(can_read_topk(task, index, {}));
  const VisibleRows few{0, 0, 127};
  task.visible = std::span(&few, 1);
  EXPECT_FALSE(can_read_topk(task, index, {}));
}

/// The task as if only its first n rows were there yet.
AttendTask short_task(TopkCase& problem, VisibleRows& visible, std::int64_t n) {
  visible = {0, 0, n};
  AttendTask task = problem.plain.task();
  task.visible = std::span(&visible, 1);
  return task;
}

/// What is read through an index is either not read so at all, or right.
void expect_exact_when_read(TopkCase& problem, const CodeIndex& index, std::int64_t n,
                            const TopkPolicy& policy, bool can_read) {
  SCOPED_TRACE(std::to_string(n) + " rows, window " + std::to_string(policy.window));
  VisibleRows visible;
  const AttendTask task = short_task(problem, visible, n);
  ASSERT_EQ(can_read_topk(task, index, policy), can_read);
  if (!can_read) return;
  TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
  topk_attend(task, index, policy, workspace, 1);
  EXPECT_FALSE(workspace.take_not_finite());
  const auto exact = reference_attend(task);
  for (std::size_t i = 0; i < exact.size(); ++i)
    ASSERT_NEAR(problem.plain.out()[i], exact[i], problem.plain.tolerance());
  const ReadStatistics statistics = workspace.take_statistics();
  EXPECT_EQ(statistics.rows_read, task.shape.n_kv_heads * n);
  EXPECT_EQ(statistics.rows_seen, statistics.rows_read);
}

// An index may be older than what is visible: the memory was cut back, or the codes are another
// text's. As long as no whole tile lies before the recent rows, nothing is read through it.
TEST(TopkRead, ShortContextsAreExact) {
  TopkCase problem(shape_of(6, 2, 64), 700, 12);
  const CodeIndex index = problem.make_index({});
  const TopkPolicy all{.k = 1000};
  for (const std::int64_t n : {0, 1, 63, 64, 65, 127})
    expect_exact_when_read(problem, index, n, all, false);
  for (const std::int64_t n : {128, 129, 191, 192, 700})
    expect_exact_when_read(problem, index, n, all, true);
  // Without a window one whole tile is enough; a window may also be larger than what there is.
  for (const std::int64_t n : {0, 1, 63, 64, 65}) {
    expect_exact_when_read(problem, index, n, {.k = 1000, .window = 0}, n >= 64);
    expect_exact_when_read(problem, index, n, {.k = 1000, .window = 1}, n >= 65);
  }
  for (const std::int64_t window : {637, 700, 701, 100000})
    expect_exact_when_read(problem, index, 700, {.k = 1000, .window = window}, false);
  expect_exact_when_read(problem, index, 700, {.k = 1000, .window = 636}, true);
  // A tile that is all sinks leaves nothing to choose from.
  for (const std::int64_t sinks : {63, 64, 65, 5000})
    expect_exact_when_read(problem, index, 128, {.k = 16, .sinks = sinks}, true);
}

TEST(TopkRead, ShortMemoriesGetACodeOrANamedError) {
  for (const std::int64_t n : {0, 1, 4, 5, 63, 64, 65}) {
    SCOPED_TRACE(n);
    TopkCase problem(shape_of(6, 2, 64), n, 13);
    const AttendTask task = problem.plain.task();
    const auto code = make_layer_code(task.shape, task.segments, n,
                                      {problem.queries.data(), 256, problem.positions.data()}, {});
    if (n <= 4) {  // nothing behind the sinks
      ASSERT_FALSE(code.ok());
      EXPECT_NE(code.error().message.find("got " + std::to_string(n) + " rows"), std::string::npos);
      continue;
    }
    const CodeIndex index = problem.make_index({});
    EXPECT_EQ(index.n_tiles(), n / kCodeTile);
    expect_exact_when_read(problem, index, n, {.k = 1000}, false);
    expect_exact_when_read(problem, index, n, {.k = 1000, .window = 0}, n >= 64);
  }
}

// Rows that no query sees, of another branch or behind the token, may hold anything; rows that
// never vary have codes all the same.
TEST(TopkRead, NaNBehindTheTokenAndRowsThatNeverVaryGiveNumbers) {
  for (const bool norms : {false, true}) {
    TopkCase problem(shape_of(3, 1, 64), 600, 14);
    for (const std::int64_t row : {500, 530, 599}) {
      problem.plain.k()[static_cast<std::size_t>(row * 64 + 5)] = std::nanf("");
      problem.plain.v()[static_cast<std::size_t>(row * 64 + 6)] = std::nanf("");
    }
    problem.plain.cut({200});
    const IndexOptions options{.bits = norms ? 8.0 : 3.0, .norms = norms};
    const TopkPolicy policy{
        .k = 1000, .certificate = norms ? CertificateKind::kExact : CertificateKind::kNone};
    const CodeIndex index = problem.make_index(options);
    expect_exact_when_read(problem, index, 500, policy, true);
    for (const float value : {0.0f, 1.5f}) {
      std::fill(problem.plain.k().begin(), problem.plain.k().end(), value);
      problem.plain.cut({200});
      VisibleRows visible;
      const AttendTask task = short_task(problem, visible, 500);
      const CodeIndex flat = problem.make_index(options);
      TopkWorkspace workspace = make_topk_workspace(task.shape, 1, flat.n_tiles());
      topk_attend(task, flat, {.k = 16, .certificate = policy.certificate}, workspace, 1);
      EXPECT_FALSE(workspace.take_not_finite());
      // All weights are equal, so outputs are as good as the codes of values.
      EXPECT_LT(relative_error(problem.plain.out(), reference_attend(task)), 0.2);
    }
  }
}

// Wherever exact attention has NaN, a read through an index says so: among sinks, coded, chosen or
// recent rows, with any certificate.
TEST(TopkRead, NaNInAnyVisibleRowIsAnErrorOfTheRead) {
  for (const CertificateKind kind :
       {CertificateKind::kNone, CertificateKind::kExact, CertificateKind::kDithered}) {
    for (const std::int64_t row : {0, 3, 4, 63, 64, 300, 511, 512, 560, 599}) {
      SCOPED_TRACE(row);
      TopkCase problem(shape_of(3, 1, 64), 600, 15);
      problem.plain.k()[static_cast<std::size_t>(row * 64 + 5)] = std::nanf("");
      problem.plain.cut({});
      const CodeIndex index = problem.make_index(
          {.bits = kind == CertificateKind::kExact ? 8.0 : 5.0,
           .norms = kind == CertificateKind::kExact,
           .dither = kind == CertificateKind::kDithered ? Dither::kSubtractive : Dither::kNone});
      const AttendTask task = problem.plain.task();
      const TopkPolicy policy{.k = 64, .certificate = kind};
      ASSERT_TRUE(can_read_topk(task, index, policy));
      TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
      topk_attend(task, index, policy, workspace, 1);
      EXPECT_TRUE(workspace.take_not_finite());
    }
  }
}

// A mean that is off shifts all coded scores of a query alike, so the choice stays what it was.
TEST(TopkRead, AShiftOfTheMeanChangesNoChoice) {
  TopkCase problem(shape_of(2, 1, 64), 1500, 16);
  const CodeIndex index = problem.make_index({.bits = 8.0});
  auto shifted = std::make_shared<LayerCode>(index.code());
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  for (float& x : shifted->keys[0].mean) x += 0.3f * normal(random);
  CodeIndex other(shifted);
  const AttendTask task = problem.plain.task();
  CodeScratch scratch;
  while (other.n_tiles() < index.n_tiles())
    ASSERT_TRUE(other.append_tile(task.shape, task.segments, scratch).ok());
  const auto chosen = [&](const CodeIndex& codes) {
    TopkWorkspace workspace = make_topk_workspace(task.shape, 1, codes.n_tiles());
    topk_attend(task, codes, {.k = 64}, workspace, 1);
    const TopkWorkspace::Impl& w = workspace.impl();
    EXPECT_EQ(w.n_selected[0], 64);
    return std::set<std::int32_t>(w.selected, w.selected + 64);
  };
  const std::set<std::int32_t> expected = chosen(index), found = chosen(other);
  std::vector<std::int32_t> both;
  std::set_intersection(expected.begin(), expected.end(), found.begin(), found.end(),
                        std::back_inserter(both));
  EXPECT_GE(both.size(), 61u);  // bytes: neighbours of the border may swap
}

TEST(TopkRead, NaNInARowIsAnErrorOfTheRead) {
  for (const bool key : {true, false}) {
    TopkCase problem(shape_of(3, 1, 64), 600, 6);
    (key ? problem.plain.k() : problem.plain.v())[100 * 64 + 5] = std::nanf("");
    problem.plain.cut({});
    const CodeIndex index = problem.make_index({});
    const AttendTask task = problem.plain.task();
    TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
    topk_attend(task, index, {.k = 64}, workspace, 1);
    EXPECT_TRUE(workspace.take_not_finite()) << key;
  }
}

// The certificate's promise, on random problems of all kinds: peaked and flat, short and long
// codes, with and without a tail, fixed and adaptive.
TEST(TopkCertificate, BoundsTheTrueVariationAlways) {
  int reads = 0;
  double largest_ratio = 0.0;
  int dense = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int group = 1 + static_cast<int>(random() % 4);
    const int dims[] = {32, 64, 80, 128};
    const auto n = static_cast<std::int64_t>(200 + random() % 1200);
    const float amplitude = 0.2f * static_cast<float>(1 << (random() % 6));
    TopkCase problem(shape_of(2 * group, 2, dims[random() % 4]), n, seed, amplitude);
    const CodeIndex index = problem.make_index({.bits = 8.0, .norms = true});
    TopkPolicy policy{.k = static_cast<std::int64_t>(1 + random() % 100),
                      .certificate = CertificateKind::kExact,
                      .coded_tail = random() % 4 != 0};
    if (random() % 2 == 0) policy.max_error = random() % 2 == 0 ? 0.05 : 0.01;
    const AttendTask task = problem.plain.task();
    TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
    topk_attend(task, index, policy, workspace, 1);
    ASSERT_FALSE(workspace.take_not_finite());
    const ReadStatistics statistics = workspace.take_statistics();
    if (policy.max_error > 0.0) {
      ASSERT_EQ(statistics.certified, statistics.reads);
    }
    if (statistics.certified < statistics.reads) continue;  // a bound of 1 or more
    dense += static_cast<int>(statistics.dense);
    const std::int64_t n_tiles = std::min((n - policy.window) / kCodeTile, index.n_tiles());
    for (int head = 0; head < task.shape.n_heads; ++head) {
      const double variation =
          used_variation(task, head, problem.plain, workspace, policy, n_tiles);
      ++reads;
      ASSERT_LE(variation, statistics.worst_bound + 1e-9) << "seed " << seed << " head " << head;
      if (policy.max_error > 0.0) {
        ASSERT_LE(variation, policy.max_error);
      }
      if (statistics.worst_bound > 1e-6)
        largest_ratio = std::max(largest_ratio, variation / statistics.worst_bound);
    }
  }
  EXPECT_GT(largest_ratio, 0.01);  // a bound that is never near the truth would bound nothing
  EXPECT_GT(dense, 0);
  EXPECT_LT(dense, reads / 2);
}

// Negative control: the query is turned to one row's coding error and away from the row itself, so
// that this row is the last one chosen and its error counts in full. A quarter of the bound must
// then be too little; if it were not, the test above would show nothing.
TEST(TopkCertificate, AQuarterOfTheBoundIsTooLittle) {
  int broken = 0;
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    TopkCase problem(shape_of(1, 1, 32), 300, seed);
    const CodeIndex index = problem.make_index({.bits = 4.0, .norms = true});
    const RowCode& code = index.code().keys[0];
    const std::int64_t n_coded = (300 - 64) / kCodeTile * kCodeTile;
    for (std::int64_t row = 4; row < n_coded; row += 7) {
      const HeadTile tile = index.head_tile(0, row / kCodeTile);
      const CodedRows coded{const_cast<std::byte*>(tile.key_levels),
                            const_cast<std::uint16_t*>(tile.key_scales), nullptr};
      const std::vector<float> x =
          decode_row(code, CodeSide::kKeys, coded, static_cast<int>(row % kCodeTile));
      const float* k = problem.plain.k().data() + row * 32;
      std::vector<double> error(x.size());
      double error_length = 0.0, length = 0.0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        double exact = 0.0;
        for (std::size_t j = 0; j < 32; ++j)
          exact +=
              (f16_to_f32(f32_to_f16(k[j])) - static_cast<double>(code.mean[j])) *
              static_cast<double>(code.encode[j * static_cast<std::size_t>(code.stride()) + i]);
        error[i] = exact - static_cast<double>(x[i]);
        error_length += error[i] * error[i];
        length += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
      for (std::size_t j = 0; j < 32; ++j) {
        double q = 0.0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double a = error[i] / std::sqrt(error_length) -
                           2.0 * static_cast<double>(x[i]) / std::sqrt(length);
          q +=
              a * static_cast<double>(code.encode[j * static_cast<std::size_t>(code.stride()) + i]);
        }
        problem.plain.q()[j] = static_cast<float>(q);
      }
      const AttendTask task = problem.plain.task();
      TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
      const TopkPolicy policy{.k = n_coded - 5, .certificate = CertificateKind::kExact};
      topk_attend(task, index, policy, workspace, 1);
      const double bound = workspace.take_statistics().worst_bound;
      const double variation =
          used_variation(task, 0, problem.plain, workspace, policy, n_coded / kCodeTile);
      EXPECT_LE(variation, bound);
      broken += variation > 0.25 * bound ? 1 : 0;
    }
  }
  EXPECT_GT(broken, 5);
}

/// Rows in a few tight clusters, where what is unread of a cluster is its unlucky part.
void make_clusters(TopkCase& problem, std::uint32_t seed, float width) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const AttentionShape shape = problem.plain.task().shape;
  const auto dim = static_cast<std::size_t>(shape.head_dim_k);
  auto& k = problem.plain.k();
  std::vector<float> centers(4 * dim);
  for (float& x : centers) x = normal(random);
  for (std::size_t i = 0; i < k.size(); ++i) {
    const std::size_t row = i / dim;
    k[i] = centers[row % 4 * dim + i % dim] + width * normal(random);
  }
  problem.plain.cut({problem.plain.options().n_rows / 3});
}

TEST(TopkCertificate, DitheredCodesBoundTheTrueVariation) {
  double largest_ratio = 0.0;
  double sum_ratio = 0.0;
  int reads = 0, dense = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int group = 1 + static_cast<int>(random() % 4);
    const int dims[] = {32, 64, 80, 128};
    const auto n = static_cast<std::int64_t>(300 + random() % 1200);
    const float amplitude = 0.2f * static_cast<float>(1 << (random() % 4));
    TopkCase problem(shape_of(2 * group, 2, dims[random() % 4]), n, seed, amplitude);
    if (seed % 3 == 0) make_clusters(problem, seed, seed % 2 == 0 ? 0.0f : 0.05f);
    const double bits = random() % 2 == 0 ? 4.0 : 5.0;
    const CodeIndex index =
        problem.make_index({.bits = bits, .dither = Dither::kSubtractive}, seed + 1);
    TopkPolicy policy{.k = static_cast<std::int64_t>(1 + random() % 100),
                      .certificate = CertificateKind::kDithered};
    if (seed % 2 == 0) policy.max_error = random() % 2 == 0 ? 0.05 : 0.02;
    const AttendTask task = problem.plain.task();
    ASSERT_TRUE(can_read_topk(task, index, policy));
    TopkWorkspace workspace = make_topk_workspace(task.shape, 1, index.n_tiles());
    topk_attend(task, index, policy, workspace, 1);
    ASSERT_FALSE(workspace.take_not_finite());
    const ReadStatistics statistics = workspace.take_statistics();
    if (policy.max_error > 0.0) {
      ASSERT_EQ(statistics.certified, statistics.reads);
    }
    dense += static_cast<int>(statistics.dense);
    if (statistics.certified < statistics.reads) continue;
    const std::int64_t n_tiles = std::min((n - policy.window) / kCodeTile, index.n_tiles());
    double worst = 0.0;
    for (int head = 0; head < task.shape.n_heads; ++head) {
      const double variation =
          used_variation(task, head, problem.plain, workspace, policy, n_tiles);
      ++reads;
      worst = std::max(worst, variation);
      ASSERT_LE(variation, statistics.worst_bound + 1e-9) << "seed " << seed << " head " << head;
      if (policy.max_error > 0.0) {
        ASSERT_LE(variation, policy.max_error);
      }
    }
    if (statistics.dense > 0) continue;
    largest_ratio = std::max(largest_ratio, worst / statistics.worst_bound);
    sum_ratio += worst / statistics.worst_bound;
  }
  EXPECT_GT(reads, 100);
  EXPECT_LT(dense, reads / 2);
  EXPECT_GT(largest_ratio, 0.3);  // the bound is near the truth
}

// The dither must be taken out again: codes read without it are off by much more.
TEST(TopkCertificate, DitheredTailsAreAsGoodAsPlainOnes) {
  TopkCase problem(shape_of(3, 1, 64), 1500, 8);
  const auto exact = reference_attend(problem.plain.task());
  const TopkPolicy plain{.k = 128};
  const TopkPolicy dithered{.k = 128, .certificate = CertificateKind::kDithered};
  const double without =
      relative_error(read(problem, problem.make_index({.bits = 4.0}), plain).out, exact);
  const CodeIndex index = problem.make_index({.bits = 4.0, .dither = Dither::kSubtractive}, 9);
  const double with = relative_error(read(problem, index, dithered).out, exact);
  EXPECT_LT(with, 2.0 * without);
  EXPECT_FALSE(can_read_topk(problem.plain.task(), index, plain));
  // Another seed, other codes; the same seed, the same bits for any number of threads.
  const auto one = read(problem, index, dithered, 1).out;
  EXPECT_EQ(read(problem, index, dithered, 3).out, one);
  const CodeIndex other = problem.make_index({.bits = 4.0, .dither = Dither::kSubtractive}, 10);
  EXPECT_NE(read(problem, other, dithered, 1).out, one);
}

TEST(Select, EqualsSorting) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t n = kSelectBlock * static_cast<std::int64_t>(1 + random() % 60);
    std::vector<float> values(static_cast<std::size_t>(n));
    const unsigned distinct = trial % 3 == 0 ? 3 : 1000;  // many ties
    for (float& x : values)
      x = static_cast<float>(random() % distinct) / (trial % 2 == 0 ? 1e3f : 1e-3f);
    std::vector<float> block_max, scratch(values.size());
    for (std::int64_t b = 0; b < n; b += kSelectBlock)
      block_max.push_back(*std::max_element(values.begin() + b, values.begin() + b + kSelectBlock));
    const auto k = static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(n + 10));
    std::vector<std::int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      const auto x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
      return x != y ? x > y : a > b;
    });
    std::vector<std::int32_t> expected;
    for (const std::int32_t i : order) {
      if (std::ssize(expected) < k && values[static_cast<std::size_t>(i)] > 0)
        expected.push_back(i);
    }
    std::sort(expected.begin(), expected.end());
    std::vector<std::int32_t> found(values.size());
    found.resize(static_cast<std::size_t>(
        select_largest(values.data(), block_max.data(), n, k, found.data(), scratch.data())));
    ASSERT_EQ(found, expected) << trial;
  }
}

}  // namespace
}  // namespace volvelle::law
