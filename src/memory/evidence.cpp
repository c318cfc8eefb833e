// See evidence.hpp for the formula. The collector runs on an engine thread while others wait, so it
// reads every key row once for all heads of its group and allocates only when the memory has grown.
#include "volvelle/memory/evidence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <string>

#include "volvelle/attention/weights.hpp"

namespace volvelle {
namespace {

/// How many tokens back a rule lets a query see.
std::int64_t reach(const WindowRule& rule) noexcept {
  return rule.tokens == 0 ? std::numeric_limits<std::int64_t>::max() : rule.tokens;
}

}  // namespace

Result<EvidenceCollector> EvidenceCollector::create(const ContextMemory& memory, std::int64_t begin,
                                                    std::int64_t end, EvidenceOptions options) {
  if (begin < 0 || end < begin || end > memory.length()) {
    return Error{ErrorCode::kInvalidArgument, "evidence: the document's tokens must lie in 0 to " +
                                                  std::to_string(memory.length()) + ", not " +
                                                  std::to_string(begin) + " to " +
                                                  std::to_string(end)};
  }
  EvidenceCollector collector;
  collector.options_ = options;
  collector.group_of_layer_ = memory.grouping().group_of_layer;
  collector.scores_.assign(static_cast<std::size_t>(end - begin), 0.0);
  const std::int64_t first_far = std::max(begin, options.skip_first);
  std::int64_t farthest = 0;
  for (const RowGroup& group : memory.groups()) farthest = std::max(farthest, reach(group.rule()));
  for (const RowGroup& group : memory.groups()) {
    const std::span<const Position> positions = group.store().positions();
    const auto first = std::lower_bound(positions.begin(), positions.end(), Position(first_far));
    DocumentRows rows;
    rows.sees_farthest = reach(group.rule()) == farthest;
    rows.first_row = first - positions.begin();
    for (auto p = first; p != positions.end() && *p < Position(end); ++p) {
      rows.tokens.push_back(p->value() - begin);
    }
    collector.groups_.push_back(std::move(rows));
  }
  return collector;
}

void EvidenceCollector::observe(LayerIndex layer, const AttendTask& task) noexcept {
  const auto index = static_cast<std::size_t>(layer.value());
  const int group = index < group_of_layer_.size() ? group_of_layer_[index] : -1;
  if (group < 0 || failed_) {
    failed_ = true;
    return;
  }
  const DocumentRows& rows = groups_[static_cast<std::size_t>(group)];
  if (!rows.sees_farthest) return;
  try {
    for (std::int64_t token = 0; token < task.n_tokens(); ++token) {
      observe_token(rows, task, token);
    }
  } catch (const std::bad_alloc&) {
    failed_ = true;
  }
}

void EvidenceCollector::observe_token(const DocumentRows& rows, const AttendTask& task,
                                      std::int64_t token) {
  const VisibleRows& visible = task.visible[static_cast<std::size_t>(token)];
  const auto n = static_cast<std::size_t>(n_visible(visible));
  const auto group = static_cast<std::size_t>(task.shape.group());
  weights_.resize(std::max(weights_.size(), group * n));
  const std::span<float> weights = std::span(weights_).first(group * n);
  for (int kv_head = 0; kv_head < task.shape.n_kv_heads; ++kv_head) {
    group_attention_weights(task, token, kv_head, weights, {});
    for (std::size_t h = 0; h < group; ++h) add_head(rows, visible, weights.subspan(h * n, n));
  }
}

void EvidenceCollector::add_head(const DocumentRows& rows, const VisibleRows& visible,
                                 std::span<const float> weights) noexcept {
  const std::int64_t far_end =
      std::min(rows.first_row + static_cast<std::int64_t>(rows.tokens.size()),
               visible.end - options_.neighbourhood);
  // The far rows among the sinks and in the window, as (first row, its entry in weights, number).
  struct Part {
    std::int64_t row, entry, n;
  };
  const auto part = [&](std::int64_t begin, std::int64_t end, std::int64_t entry) {
    const std::int64_t first = std::max(begin, rows.first_row);
    return Part{first, entry + first - begin,
                std::max<std::int64_t>(0, std::min(end, far_end) - first)};
  };
  const Part parts[] = {part(0, visible.sink_end, 0),
                        part(visible.begin, visible.end, visible.sink_end)};
  double mass = 0;
  double squares = 0;
  for (const Part& p : parts) {
    for (std::int64_t i = 0; i < p.n; ++i) {
      const double w = weights[static_cast<std::size_t>(p.entry + i)];
      mass += w;
      squares += w * w;
    }
  }
  const double concentration = squares / (mass * mass);
  if (!std::isfinite(concentration)) return;  // no far row, or no mass on them
  const double factor = concentration * concentration;
  for (const Part& p : parts) {
    if (p.n == 0) continue;
    const std::int64_t* const tokens = rows.tokens.data() + (p.row - rows.first_row);
    for (std::int64_t i = 0; i < p.n; ++i) {
      scores_[static_cast<std::size_t>(tokens[i])] +=
          factor * weights[static_cast<std::size_t>(p.entry + i)];
    }
  }
}

Status EvidenceCollector::status() const {
  if (!failed_) return {};
  return Error{ErrorCode::kResourceExhausted,
               "evidence: the attention of a layer could not be observed: no memory for its "
               "weights, or the layer keeps no rows of its own"};
}

}  // namespace volvelle
