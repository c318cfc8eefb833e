// Everything is computed again from the rows; of the read only its choice, its coded weights and
// its bounds are taken, which are in the workspace until the next read.
#include "index/read_audit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "attention/rows.hpp"
#include "index/stored_rows.hpp"
#include "index/topk_workspace.hpp"

namespace volvelle {
namespace {

struct Audited {
  const AttendTask& task;
  const TopkPolicy& policy;
  const TopkWorkspace::Impl& workspace;
  std::int64_t n_rows;
  std::int64_t n_coded_rows;
};

/// Exact scores of one head over the visible rows, natural units.
std::vector<double> exact_scores(const Audited& read, int head, const std::vector<float>& keys) {
  const AttentionShape& shape = read.task.shape;
  const float* q = read.task.q + head * read.task.q_head_stride;
  std::vector<double> scores(static_cast<std::size_t>(read.n_rows));
  for (std::size_t r = 0; r < scores.size(); ++r) {
    const float* k = keys.data() + r * static_cast<std::size_t>(shape.head_dim_k);
    double score = 0.0;
    for (int i = 0; i < shape.head_dim_k; ++i)
      score += static_cast<double>(q[i]) * static_cast<double>(k[i]);
    scores[r] = score * static_cast<double>(shape.scale);
  }
  return scores;
}

/// Scores that the read used: coded ones where it did not read the row; -infinity if it left it
/// out.
std::vector<double> used_scores(const Audited& read, int head, const std::vector<double>& exact) {
  const TopkWorkspace::Impl& w = read.workspace;
  const int kv_head = head / read.task.shape.group();
  std::vector<double> used = exact;
  const std::int64_t first = std::min(read.policy.sinks, read.n_coded_rows);
  for (std::int64_t r = first; r < read.n_coded_rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const double factor = static_cast<double>(w.tile_m[head * w.capacity_tiles + r / kCodeTile]);
    const double weight = static_cast<double>(w.weights_of(head)[r]) * factor;
    used[at] =
        read.policy.coded_tail
            ? std::log(weight) + static_cast<double>(w.top[static_cast<std::size_t>(head)]) * kLn2
            : -std::numeric_limits<double>::infinity();
  }
  const std::int32_t* chosen = w.selected + kv_head * w.capacity_tiles * kCodeTile;
  for (std::int64_t i = 0; i < w.n_selected[static_cast<std::size_t>(kv_head)]; ++i)
    used[static_cast<std::size_t>(chosen[i])] = exact[static_cast<std::size_t>(chosen[i])];
  return used;
}

/// softmax, in place.
void to_weights(std::vector<double>& scores, double sink) {
  double top = sink;
  for (const double s : scores) top = std::max(top, s);
  double sum = std::exp(sink - top);
  for (double& s : scores) sum += s = std::exp(s - top);
  for (double& s : scores) s /= sum;
}

double output_error(const Audited& read, int head, const std::vector<double>& weights,
                    const std::vector<float>& values) {
  const auto dim = static_cast<std::size_t>(read.task.shape.head_dim_v);
  std::vector<double> exact(dim, 0.0);
  for (std::size_t r = 0; r < weights.size(); ++r) {
    for (std::size_t j = 0; j < dim; ++j)
      exact[j] += weights[r] * static_cast<double>(values[r * dim + j]);
  }
  const float* out = read.task.out + head * read.task.out_head_stride;
  double difference = 0.0;
  double length = 0.0;
  for (std::size_t j = 0; j < dim; ++j) {
    difference += std::pow(static_cast<double>(out[j]) - exact[j], 2);
    length += exact[j] * exact[j];
  }
  return length > 0.0 ? std::sqrt(difference / length) : 0.0;
}

void audit_head(const Audited& read, int head, const std::vector<float>& keys,
                const std::vector<float>& values, ReadStatistics& statistics) {
  const auto kv_head = static_cast<std::size_t>(head / read.task.shape.group());
  const double sink = read.task.sink_logits != nullptr
                          ? static_cast<double>(read.task.sink_logits[head])
                          : -std::numeric_limits<double>::infinity();
  std::vector<double> exact = exact_scores(read, head, keys);
  double variation = 0.0;
  if (read.workspace.dense[kv_head] != 0) {
    to_weights(exact, sink);
  } else {
    std::vector<double> used = used_scores(read, head, exact);
    to_weights(exact, sink);
    to_weights(used, sink);
    // With a learned sink the missing weight is that of the sink, one more outcome.
    double exact_sum = 0.0;
    double used_sum = 0.0;
    for (std::size_t r = 0; r < exact.size(); ++r) {
      variation += std::abs(exact[r] - used[r]) / 2;
      exact_sum += exact[r];
      used_sum += used[r];
    }
    variation += std::abs(exact_sum - used_sum) / 2;
  }
  ++statistics.audited;
  statistics.sum_variation += variation;
  statistics.worst_variation = std::max(statistics.worst_variation, variation);
  statistics.violations += variation > read.workspace.bounds[kv_head] + 1e-9 ? 1 : 0;
  statistics.sum_output_error += output_error(read, head, exact, values);
}

}  // namespace

void audit_read(const AttendTask& task, const CodeIndex& index, const TopkPolicy& policy,
                TopkWorkspace& workspace) noexcept try {
  if (task.n_tokens() != 1) return;
  TopkWorkspace::Impl& w = workspace.impl();
  const std::int64_t n_rows = task.visible.front().end;
  const std::int64_t n_tiles =
      std::min({(n_rows - policy.window) / kCodeTile, index.n_tiles(), w.capacity_tiles});
  const Audited read{task, policy, w, n_rows, n_tiles * kCodeTile};
  const AttentionShape& shape = task.shape;
  const StoredRows stored(shape, task.segments);
  std::vector<float> keys(static_cast<std::size_t>(n_rows * shape.head_dim_k));
  std::vector<float> values(static_cast<std::size_t>(n_rows * shape.head_dim_v));
  for (int kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
    if (!stored.load_keys(kv_head, 0, n_rows, keys.data()) ||
        !stored.load_values(kv_head, 0, n_rows, values.data())) {
      return;
    }
    for (int g = 0; g < shape.group(); ++g)
      audit_head(read, kv_head * shape.group() + g, keys, values, w.threads.front().statistics);
  }
} catch (const std::bad_alloc&) {
  // Not counted as audited.
}

}  // namespace volvelle
