// Positions to rows and back, for one group of layers; see the header for the invariant. What
// counts as dropped follows from the rule alone; the store frees whole blocks only, so some dropped
// rows stay resident until their block is empty.
#include "volvelle/memory/row_group.hpp"

#include <algorithm>
#include <string>

#include "base/result_macros.hpp"

namespace volvelle {
namespace {

Error group_error(ErrorCode code, const std::string& message) {
  return Error{code, "context memory: " + message};
}

}  // namespace

RowGroup::RowGroup(StoreLayout layout, const WindowRule& rule)
    : rule_(rule), store_(std::move(layout), rule.drops ? kWindowBlockRows : KvStore::kBlockRows) {}

RowGroup::RowGroup(KvStore store, const RowGroup& other)
    : rule_(other.rule_),
      store_(std::move(store)),
      length_(other.length_),
      kept_from_(other.kept_from_) {}

Status RowGroup::restore(SavedRows saved, std::int64_t length) {
  VOLVELLE_RETURN_IF_ERROR(check_restored(saved.positions, length));
  VOLVELLE_RETURN_IF_ERROR(store_.adopt(std::move(saved.rows), saved.positions, length));
  length_ = length;
  // The kept rows behind the sinks are the last ones; walk back as far as they follow each other.
  std::int64_t kept = length;
  for (auto row = saved.positions.rbegin(); row != saved.positions.rend(); ++row) {
    if (row->value() != kept - 1) break;
    kept = row->value();
  }
  kept_from_ = std::max(kept, std::min(rule_.sinks, length));
  return {};
}

// The next query's rows must all be there, and no row may belong to a token that is not.
Status RowGroup::check_restored(std::span<const Position> positions, std::int64_t length) const {
  if (!positions.empty() && positions.back() >= Position(length)) {
    return group_error(ErrorCode::kCorrupt, "restore: a row at position " +
                                                std::to_string(positions.back().value()) + " of " +
                                                std::to_string(length) + " tokens");
  }
  const std::int64_t sinks = std::min(rule_.sinks, length);
  const std::int64_t begin = std::min(std::max(rule_.begin(length), sinks), length);
  // Positions ascend, so counting those in a range tells whether all of them are there.
  const auto n_before = [&](std::int64_t p) {
    return std::lower_bound(positions.begin(), positions.end(), Position(p)) - positions.begin();
  };
  if (n_before(sinks) == sinks && std::ssize(positions) - n_before(begin) == length - begin)
    return {};
  return group_error(ErrorCode::kCorrupt,
                     "restore: the next query sees the rows of positions 0 to " +
                         std::to_string(sinks) + " and " + std::to_string(begin) + " to " +
                         std::to_string(length) + ", but some are missing");
}

Status RowGroup::begin(std::int64_t n) {
  std::vector<Position> positions;
  positions.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) positions.emplace_back(length_ + i);
  VOLVELLE_RETURN_IF_ERROR(store_.begin_append(positions));
  visible_.clear();
  for (const Position position : positions) visible_.push_back(visible_rows(position.value()));
  return {};
}

// Row of the first kept token at or behind `position`; pending and coming tokens follow the stored
// rows one by one.
std::int64_t RowGroup::first_row_at(std::int64_t position) const noexcept {
  if (position >= length_) return store_.n_rows() + position - length_;
  const std::span<const Position> positions = store_.positions();
  return std::lower_bound(positions.begin(), positions.end(), Position(position)) -
         positions.begin();
}

VisibleRows RowGroup::visible_rows(std::int64_t t) const noexcept {
  const std::int64_t end = t + 1;
  const std::int64_t sink_end = std::min(rule_.sinks, end);
  const std::int64_t begin = std::clamp(rule_.begin(t), sink_end, end);
  return {first_row_at(sink_end), first_row_at(begin), first_row_at(end)};
}

void RowGroup::commit() {
  length_ += static_cast<std::int64_t>(visible_.size());
  store_.commit();
  visible_.clear();
  if (!rule_.drops) return;
  kept_from_ = std::max(kept_from_, rule_.keep_from(length_));
  const std::int64_t first = std::min(kept_from_, length_);
  store_.release(first_row_at(std::min(rule_.sinks, first)), first_row_at(first));
}

void RowGroup::rollback() noexcept {
  store_.rollback();
  visible_.clear();
}

RowGroup RowGroup::clone() const { return RowGroup(store_.clone(), *this); }

Status RowGroup::check_truncate(std::int64_t length) const {
  const std::int64_t begin = rule_.begin(length);
  if (begin >= length || begin >= kept_from_) return {};
  return group_error(ErrorCode::kInvalidArgument,
                     "truncate: after " + std::to_string(length) +
                         " tokens the next query would see position " + std::to_string(begin) +
                         ", but rows before position " + std::to_string(kept_from_) +
                         " were dropped by a window of " + std::to_string(rule_.tokens) +
                         " tokens; read the text again");
}

Status RowGroup::truncate(std::int64_t length) {
  VOLVELLE_RETURN_IF_ERROR(store_.truncate(first_row_at(length)));
  length_ = length;
  kept_from_ = std::min(kept_from_, length);
  return {};
}

std::vector<std::pair<std::int64_t, std::int64_t>> RowGroup::rows_to_keep() const {
  const std::int64_t kept = std::max(kept_from_, rule_.keep_from(length_));
  const std::int64_t sink_end = first_row_at(std::min(rule_.sinks, length_));
  const std::int64_t begin = first_row_at(std::min(kept, length_));
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  if (begin <= sink_end) {
    if (store_.n_rows() > 0) ranges.emplace_back(0, store_.n_rows());
    return ranges;
  }
  if (sink_end > 0) ranges.emplace_back(0, sink_end);
  if (begin < store_.n_rows()) ranges.emplace_back(begin, store_.n_rows());
  return ranges;
}

}  // namespace volvelle
