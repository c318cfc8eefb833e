// Both reads are of the same rows and alternate, so that the ratio is fair on a noisy machine.
#include "eval/index_timing.hpp"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <future>
#include <numeric>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/result_macros.hpp"
#include "eval/statistics.hpp"
#include "kernels/convert.hpp"

namespace volvelle {
namespace {

constexpr int kCalls = 15;
constexpr std::int64_t kQueries = 256;  // that the code is made of
// Logits with a standard deviation of 3 nats, so that a few rows have most of the weight, as in
// real heads: what hardly counts is skipped, which flat weights would not show.
constexpr float kPeak = 9.0f;

/// Numbers in (-1, 1), the same in every run.
class Numbers {
 public:
  float next() noexcept {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<float>(state_ >> 40) * 0x1p-23f - 1.0f;
  }

 private:
  std::uint64_t state_ = 1;
};

void fill(std::byte* rows, ElementType type, std::int64_t n_rows, int dim, Numbers& numbers) {
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (std::int64_t i = 0; i < n_rows; ++i) {
    for (float& x : row) x = numbers.next();
    convert_row(row.data(), rows + static_cast<std::size_t>(i) * row_bytes(type, dim), type, dim);
  }
}

/// Rows of one layer and the task that reads them all.
struct Problem {
  std::shared_ptr<RowBlock> block;
  KeyValueSegment segment;
  VisibleRows visible;
  std::vector<float> queries;  // [kQueries, n_heads, head_dim]
  std::vector<std::int64_t> positions;
  std::vector<float> out;
  AttendTask task;
};

Result<std::unique_ptr<Problem>> make_problem(const TimingRequest& request) {
  const LayerShape& shape = request.shape;
  const std::int64_t n = request.prefix;
  auto problem = std::make_unique<Problem>();
  const StoreLayout layout{{shape}, request.k_type, request.v_type};
  VOLVELLE_ASSIGN_OR_RETURN(problem->block, allocate_row_block(layout, n));
  const RowBlock::LayerPlanes& planes = problem->block->layers.front();
  Numbers numbers;
  for (std::size_t head = 0; head < static_cast<std::size_t>(shape.n_kv_heads); ++head) {
    fill(planes.k + head * planes.k_head_stride, request.k_type, n, shape.head_dim_k, numbers);
    fill(planes.v + head * planes.v_head_stride, request.v_type, n, shape.head_dim_v, numbers);
  }
  problem->segment = {0, n, planes.k, planes.v, planes.k_head_stride, planes.v_head_stride};
  problem->visible = {0, 0, n};
  const auto heads = static_cast<std::size_t>(request.n_heads);
  problem->queries.resize(static_cast<std::size_t>(kQueries) * heads *
                          static_cast<std::size_t>(shape.head_dim_k));
  for (float& x : problem->queries) x = kPeak * numbers.next();
  problem->positions.resize(static_cast<std::size_t>(kQueries));
  std::iota(problem->positions.begin(), problem->positions.end(),
            std::max<std::int64_t>(0, n - kQueries));
  problem->out.resize(heads * static_cast<std::size_t>(shape.head_dim_v));
  AttendTask& task = problem->task;
  task.shape = {request.n_heads,  shape.n_kv_heads, shape.head_dim_k,
                shape.head_dim_v, request.k_type,   request.v_type};
  task.shape.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim_k));
  task.segments = std::span(&problem->segment, 1);
  task.visible = std::span(&problem->visible, 1);
  task.q = problem->queries.data();
  task.q_head_stride = shape.head_dim_k;
  task.q_token_stride = static_cast<std::ptrdiff_t>(heads) * shape.head_dim_k;
  task.out = problem->out.data();
  task.out_head_stride = shape.head_dim_v;
  task.out_token_stride = static_cast<std::ptrdiff_t>(heads) * shape.head_dim_v;
  return problem;
}

Result<CodeIndex> make_index(const Problem& problem, std::int64_t n_rows,
                             const IndexOptions& options) {
  const AttendTask& task = problem.task;
  VOLVELLE_ASSIGN_OR_RETURN(
      LayerCode code,
      make_layer_code(task.shape, task.segments, n_rows,
                      {problem.queries.data(), kQueries, problem.positions.data()}, options));
  CodeIndex index(std::make_shared<LayerCode>(std::move(code)));
  CodeScratch scratch;
  while ((index.n_tiles() + 1) * kCodeTile <= n_rows)
    VOLVELLE_RETURN_IF_ERROR(index.append_tile(task.shape, task.segments, scratch));
  return index;
}

/// Medians of two kinds of reads that alternate on threads that stay, as an engine's do: starting
/// threads would cost as much as a read.
template <class First, class Second>
std::pair<double, double> time_alternating(int n_threads, First first, Second second) {
  std::barrier<> meet(n_threads);
  std::vector<double> firsts, seconds;
  const auto run = [&](int ith) {
    for (int call = 0; call <= kCalls; ++call) {
      meet.arrive_and_wait();
      const auto start = Clock::now();
      first(ith);
      meet.arrive_and_wait();
      const auto middle = Clock::now();
      second(ith);
      meet.arrive_and_wait();
      if (ith != 0 || call == 0) continue;  // the first round warms up
      firsts.push_back(std::chrono::duration<double>(middle - start).count());
      seconds.push_back(seconds_since(middle));
    }
  };
  // Nobody waits for a thread that the system did not give.
  std::promise<bool> all_here;
  const std::shared_future<bool> go = all_here.get_future().share();
  {
    std::vector<std::jthread> others;
    try {
      for (int ith = 1; ith < n_threads; ++ith)
        others.emplace_back([&, go, ith] {
          if (go.get()) run(ith);
        });
    } catch (...) {
      all_here.set_value(false);
      throw;
    }
    all_here.set_value(true);
    run(0);
  }
  return {median(std::move(firsts)), median(std::move(seconds))};
}

}  // namespace

Result<IndexTiming> time_index(const TimingRequest& request, const IndexPlan& plan,
                               AttendWorkspace& workspace) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto problem, make_problem(request));
  VOLVELLE_ASSIGN_OR_RETURN(const CodeIndex index,
                            make_index(*problem, request.prefix, plan.options));
  const AttendTask& task = problem->task;
  VOLVELLE_ASSIGN_OR_RETURN(
      TopkWorkspace topk,
      TopkWorkspace::create(request.n_threads, request.n_heads, request.shape.head_dim_k,
                            request.shape.head_dim_v));
  VOLVELLE_RETURN_IF_ERROR(topk.reserve(index.n_tiles() + 1));
  IndexTiming timing;
  timing.bytes_per_token =
      static_cast<double>(index.code().tile_bytes()) / static_cast<double>(kCodeTile);
  const auto alternating = time_alternating(
      request.n_threads, [&](int ith) { attend(task, workspace, ith, request.n_threads); },
      [&](int ith) { topk_attend(task, index, plan.policy, topk, ith, request.n_threads); });
  timing.exact_seconds = alternating.first;
  timing.index_seconds = alternating.second;
  return timing;
}

}  // namespace volvelle
