// What one sequence remembers: its tokens, and one group of rows per window rule. Every operation
// either applies to all groups or to none. Cost: O(groups) beyond what the groups cost.
#include "volvelle/memory/context_memory.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "base/result_macros.hpp"

namespace volvelle {
namespace {

Error memory_error(ErrorCode code, const std::string& message) {
  return Error{code, "context memory: " + message};
}

/// What an index asks for must exist in the model, before a text is read for it.
Status check_index(const StoreLayout& layout, const MemorySpec& spec) {
  if (!spec.topk) return {};
  for (const LayerShape& layer : layout.layers) {
    if (layer.n_kv_heads == 0 || layer.window > 0) continue;
    if (spec.topk->rank.value_or(1) <= layer.head_dim_k) continue;
    return memory_error(ErrorCode::kInvalidArgument,
                        "spec '" + to_string(spec) +
                            "': expected a rank from 1 to the head dimension " +
                            std::to_string(layer.head_dim_k));
  }
  if (!spec.dense_layers || spec.dense_layers->last < std::ssize(layout.layers)) return {};
  return memory_error(ErrorCode::kInvalidArgument, "spec '" + to_string(spec) +
                                                       "' names layers beyond the model's " +
                                                       std::to_string(layout.layers.size()));
}

Status check_spec(const StoreLayout& layout, const MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(require_supported(spec));
  VOLVELLE_ASSIGN_OR_RETURN(const KvTypes types, kv_types(spec));
  const bool stores_rows =
      std::any_of(layout.layers.begin(), layout.layers.end(),
                  [](const LayerShape& layer) { return layer.n_kv_heads > 0; });
  if (!stores_rows) {
    return memory_error(ErrorCode::kInvalidArgument, "no layer of the layout stores rows");
  }
  VOLVELLE_RETURN_IF_ERROR(check_index(layout, spec));
  if (types.k == layout.k_type && types.v == layout.v_type) return {};
  return memory_error(ErrorCode::kMismatch,
                      "spec '" + to_string(spec) + "' stores k=" + std::string(to_string(types.k)) +
                          ",v=" + std::string(to_string(types.v)) +
                          " but the layout has k=" + std::string(to_string(layout.k_type)) +
                          ",v=" + std::string(to_string(layout.v_type)));
}

}  // namespace

LayerGrouping group_layers(const StoreLayout& layout, const MemorySpec& spec) {
  // Layers without a window of their own, then ascending windows; windows under which the spec's
  // own is the narrower one fall together.
  std::set<std::int64_t> windows;
  for (const LayerShape& layer : layout.layers) {
    if (layer.n_kv_heads > 0) windows.insert(layer.window);
  }
  LayerGrouping grouping;
  const auto index_of = [&](const WindowRule& rule) {
    return std::find(grouping.rules.begin(), grouping.rules.end(), rule) - grouping.rules.begin();
  };
  for (const std::int64_t window : windows) {
    const WindowRule rule = window_rule(spec, window);
    if (index_of(rule) == std::ssize(grouping.rules)) grouping.rules.push_back(rule);
  }
  for (const LayerShape& layer : layout.layers) {
    const bool stores = layer.n_kv_heads > 0;
    grouping.group_of_layer.push_back(
        stores ? static_cast<int>(index_of(window_rule(spec, layer.window))) : -1);
  }
  return grouping;
}

StoreLayout LayerGrouping::layout_of(const StoreLayout& all, int group) const {
  StoreLayout layout = all;
  for (std::size_t i = 0; i < layout.layers.size(); ++i) {
    if (group_of_layer[i] != group) layout.layers[i] = LayerShape{};
  }
  return layout;
}

RowPositions positions_after(const LayerGrouping& grouping, std::int64_t n_tokens) {
  RowPositions positions;
  for (const WindowRule& rule : grouping.rules) {
    std::vector<Position>& kept = positions.emplace_back();
    const std::int64_t sinks = std::min(rule.sinks, n_tokens);
    for (std::int64_t p = 0; p < sinks; ++p) kept.emplace_back(p);
    for (std::int64_t p = std::max(sinks, rule.keep_from(n_tokens)); p < n_tokens; ++p)
      kept.emplace_back(p);
  }
  return positions;
}

ContextMemory::ContextMemory(StoreLayout layout, MemorySpec spec)
    : spec_(std::move(spec)), layout_(std::move(layout)), grouping_(group_layers(layout_, spec_)) {
  for (std::size_t i = 0; i < grouping_.rules.size(); ++i) {
    groups_.emplace_back(grouping_.layout_of(layout_, static_cast<int>(i)), grouping_.rules[i]);
  }
  if (spec_.topk) index_.emplace(index_plan(spec_).value(), layout_);  // the spec is supported
}

ContextMemory::ContextMemory(const ContextMemory& other, std::vector<RowGroup> groups)
    : spec_(other.spec_),
      layout_(other.layout_),
      grouping_(other.grouping_),
      groups_(std::move(groups)),
      index_(other.index_),
      tokens_(other.tokens_) {}

Result<ContextMemory> ContextMemory::create(StoreLayout layout, const MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_spec(layout, spec));
  return ContextMemory(std::move(layout), spec);
}

Result<ContextMemory> ContextMemory::restore(StoreLayout layout, const MemorySpec& spec,
                                             std::span<const TokenId> tokens,
                                             std::span<const SavedRows> groups) {
  VOLVELLE_RETURN_IF_ERROR(check_spec(layout, spec));
  ContextMemory memory(std::move(layout), spec);
  if (groups.size() != memory.groups_.size()) {
    return memory_error(ErrorCode::kCorrupt, "restore: spec '" + to_string(spec) + "' needs " +
                                                 std::to_string(memory.groups_.size()) +
                                                 " groups of rows, got " +
                                                 std::to_string(groups.size()));
  }
  memory.tokens_.assign(tokens.begin(), tokens.end());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    VOLVELLE_RETURN_IF_ERROR(memory.groups_[i].restore(groups[i], memory.length()));
  }
  return memory;
}

Status ContextMemory::begin(std::span<const TokenId> tokens) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Status begun = groups_[i].begin(static_cast<std::int64_t>(tokens.size()));
    if (begun.ok()) continue;
    for (std::size_t done = 0; done < i; ++done) groups_[done].rollback();
    return begun;
  }
  pending_.assign(tokens.begin(), tokens.end());
  return {};
}

void ContextMemory::commit() {
  tokens_.insert(tokens_.end(), pending_.begin(), pending_.end());
  pending_.clear();
  for (RowGroup& group : groups_) group.commit();
}

void ContextMemory::rollback() noexcept {
  pending_.clear();
  for (RowGroup& group : groups_) group.rollback();
  if (index_) index_->truncate(length());
}

// Served layers have no window of their own, so they all are of one group.
const KvStore& ContextMemory::indexed_store() const noexcept {
  for (std::size_t i = 0; i < layout_.layers.size(); ++i) {
    const LayerIndex layer(static_cast<std::int64_t>(i));
    if (index_->serves(layer)) return group_of(layer).store();
  }
  return groups_.front().store();
}

Status ContextMemory::prepare_index(int n_threads, const RopeConfig& rope,
                                    IndexDiagnostics* diagnostics) {
  if (!index_ || !index_->wants_making(length())) return {};
  return index_->make(indexed_store(), length(), n_threads, rope, diagnostics);
}

Status ContextMemory::adopt_codes(const ContextMemory& calibration) {
  if (length() > 0 || !pending_.empty())
    return memory_error(ErrorCode::kInvalidArgument, "only an empty memory can adopt codes");
  if (!index_ || !calibration.index_ || !calibration.index_->ready()) {
    return memory_error(
        ErrorCode::kInvalidArgument,
        "adopting codes: " + std::string(index_ ? "the other" : "this") + " memory has no index");
  }
  const IndexPlan& plan = index_->plan();
  const IndexPlan& other = calibration.index_->plan();
  if (plan.options != other.options || plan.dense_layers != other.dense_layers ||
      plan.block_anchored != other.block_anchored || calibration.layout() != layout_) {
    return memory_error(ErrorCode::kMismatch,
                        "the codes were made for '" + to_string(calibration.spec()) +
                            "', which does not go with '" + to_string(spec_) + "'");
  }
  index_->adopt_codes(*calibration.index_);
  return {};
}

Status ContextMemory::extend_index() {
  if (!index_) return {};
  return index_->extend(indexed_store(), length() + std::ssize(pending_));
}

ContextMemory ContextMemory::clone() const {
  std::vector<RowGroup> groups;
  for (const RowGroup& group : groups_) groups.push_back(group.clone());
  return ContextMemory(*this, std::move(groups));
}

Status ContextMemory::truncate(std::int64_t length) {
  if (!pending_.empty()) {
    return memory_error(ErrorCode::kInvalidArgument,
                        "truncate: tokens are pending; commit or roll back first");
  }
  if (length < 0 || length > this->length()) {
    return memory_error(ErrorCode::kInvalidArgument, "truncate: expected 0 to " +
                                                         std::to_string(this->length()) +
                                                         " tokens, got " + std::to_string(length));
  }
  for (const RowGroup& group : groups_) VOLVELLE_RETURN_IF_ERROR(group.check_truncate(length));
  for (RowGroup& group : groups_) VOLVELLE_RETURN_IF_ERROR(group.truncate(length));
  tokens_.resize(static_cast<std::size_t>(length));
  if (index_) index_->truncate(length);
  return {};
}

Status ContextMemory::write_into(int group, std::shared_ptr<RowBlock> block) {
  if (length() != 0 || !pending_.empty()) {
    return memory_error(ErrorCode::kInvalidArgument,
                        "write_into: the memory already has " + std::to_string(length()) +
                            " tokens; only an empty one can be written into a file");
  }
  return groups_.at(static_cast<std::size_t>(group)).store().adopt(std::move(block), {});
}

RowPositions ContextMemory::positions_to_keep() const {
  RowPositions positions;
  for (const RowGroup& group : groups_) {
    std::vector<Position>& kept = positions.emplace_back();
    for (const auto& [begin, end] : group.rows_to_keep()) {
      const auto rows = group.store().positions().subspan(static_cast<std::size_t>(begin),
                                                          static_cast<std::size_t>(end - begin));
      kept.insert(kept.end(), rows.begin(), rows.end());
    }
  }
  return positions;
}

std::size_t ContextMemory::row_bytes_used() const noexcept {
  std::size_t total = 0;
  for (const RowGroup& group : groups_) total += group.store().row_bytes_used();
  return total;
}

std::size_t ContextMemory::reserved_bytes() const noexcept {
  std::size_t total = 0;
  for (const RowGroup& group : groups_) total += group.store().reserved_bytes();
  return total;
}

}  // namespace volvelle
