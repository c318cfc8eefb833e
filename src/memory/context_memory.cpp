// What one sequence remembers, and what each of its queries sees.
//
//   query at position t sees the rows of positions [0, n_sink) and [E(t), t]      E:
//   memory_spec.hpp; full memory: [0, t]
//
// Positions and rows differ once rows were dropped and the memory was saved and restored, so every
// position is turned into a row through the store's ascending list of positions (binary search).
// Rows before E(next) are dropped at commit(), except one spare block of the window, so that a few
// tokens can be taken back: E(t - n) >= E(t) - B for n <= B. Cost: begin() O(n log rows), clone
// O(tokens), no row is ever moved.
#include "volvelle/memory/context_memory.hpp"

#include <algorithm>
#include <string>

#include "base/result_macros.hpp"

namespace volvelle {
namespace {

Error memory_error(ErrorCode code, const std::string& message) {
  return Error{code, "context memory: " + message};
}

Status check_spec(const StoreLayout& layout, const MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(require_supported(spec));
  VOLVELLE_ASSIGN_OR_RETURN(const KvTypes types, kv_types(spec));
  if (types.k == layout.k_type && types.v == layout.v_type) return {};
  return memory_error(ErrorCode::kMismatch,
                      "spec '" + to_string(spec) + "' stores k=" + std::string(to_string(types.k)) +
                          ",v=" + std::string(to_string(types.v)) +
                          " but the layout has k=" + std::string(to_string(layout.k_type)) +
                          ",v=" + std::string(to_string(layout.v_type)));
}

std::int64_t sink_count(const MemorySpec& spec) { return spec.sink.value_or(0); }

}  // namespace

ContextMemory::ContextMemory(StoreLayout layout, MemorySpec spec)
    : spec_(std::move(spec)), store_(std::move(layout)) {}

ContextMemory::ContextMemory(KvStore store, const ContextMemory& other)
    : spec_(other.spec_),
      store_(std::move(store)),
      tokens_(other.tokens_),
      kept_from_(other.kept_from_) {}

Result<ContextMemory> ContextMemory::create(StoreLayout layout, const MemorySpec& spec) {
  VOLVELLE_RETURN_IF_ERROR(check_spec(layout, spec));
  return ContextMemory(std::move(layout), spec);
}

Result<ContextMemory> ContextMemory::restore(StoreLayout layout, const MemorySpec& spec,
                                             std::span<const TokenId> tokens,
                                             std::shared_ptr<RowBlock> rows,
                                             std::span<const Position> positions) {
  VOLVELLE_RETURN_IF_ERROR(check_spec(layout, spec));
  ContextMemory memory(std::move(layout), spec);
  VOLVELLE_RETURN_IF_ERROR(memory.store_.adopt(std::move(rows), positions));
  memory.tokens_.assign(tokens.begin(), tokens.end());
  VOLVELLE_RETURN_IF_ERROR(memory.check_restored());
  // The kept rows behind the sinks are the last ones; walk back as far as they follow each other.
  std::int64_t kept = memory.length();
  for (auto row = positions.rbegin(); row != positions.rend(); ++row) {
    if (row->value() != kept - 1) break;
    kept = row->value();
  }
  memory.kept_from_ = std::max(kept, std::min(sink_count(spec), memory.length()));
  return memory;
}

// The next query's rows must all be there, and no row may belong to a token that is not.
Status ContextMemory::check_restored() const {
  const std::span<const Position> positions = store_.positions();
  const std::int64_t n = length();
  if (!positions.empty() && positions.back() >= next_position()) {
    return memory_error(ErrorCode::kCorrupt, "restore: a row at position " +
                                                 std::to_string(positions.back().value()) + " of " +
                                                 std::to_string(n) + " tokens");
  }
  const std::int64_t sinks = std::min(sink_count(spec_), n);
  const std::int64_t begin = std::min(std::max(window_begin(spec_, n), sinks), n);
  const auto n_rows = static_cast<std::int64_t>(positions.size());
  // Positions ascend, so counting those in a range tells whether all of them are there.
  if (first_row_at(sinks) == sinks && n_rows - first_row_at(begin) == n - begin) return {};
  return memory_error(ErrorCode::kCorrupt,
                      "restore: spec '" + to_string(spec_) + "' needs the rows of positions 0 to " +
                          std::to_string(sinks) + " and " + std::to_string(begin) + " to " +
                          std::to_string(n) + ", but some are missing");
}

Status ContextMemory::begin(std::span<const TokenId> tokens) {
  std::vector<Position> positions;
  positions.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    positions.push_back(next_position() + static_cast<std::int64_t>(i));
  }
  VOLVELLE_RETURN_IF_ERROR(store_.begin_append(positions));
  pending_.assign(tokens.begin(), tokens.end());
  visible_.clear();
  for (const Position position : positions) visible_.push_back(visible_rows(position.value()));
  return {};
}

// Row of the first kept token at or behind `position`; pending and coming tokens follow the stored
// rows one by one.
std::int64_t ContextMemory::first_row_at(std::int64_t position) const noexcept {
  if (position >= length()) return store_.n_rows() + position - length();
  const std::span<const Position> positions = store_.positions();
  return std::lower_bound(positions.begin(), positions.end(), Position(position)) -
         positions.begin();
}

VisibleRows ContextMemory::visible_rows(std::int64_t t) const noexcept {
  const std::int64_t end = t + 1;
  const std::int64_t sink_end = spec_.window ? std::min(sink_count(spec_), end) : 0;
  const std::int64_t begin = std::clamp(window_begin(spec_, t), sink_end, end);
  return {first_row_at(sink_end), first_row_at(begin), first_row_at(end)};
}

void ContextMemory::commit() {
  tokens_.insert(tokens_.end(), pending_.begin(), pending_.end());
  store_.commit();
  pending_.clear();
  visible_.clear();
  if (!spec_.window) return;
  // The store frees whole blocks only; what counts as dropped does not depend on where its blocks
  // end.
  kept_from_ = std::max(kept_from_, spare_begin());
  const std::int64_t first = std::min(kept_from_, length());
  store_.release(first_row_at(std::min(sink_count(spec_), first)), first_row_at(first));
}

void ContextMemory::rollback() noexcept {
  store_.rollback();
  pending_.clear();
  visible_.clear();
}

// First position behind the sinks that is kept when the next query is at length(): one block before
// what it sees.
std::int64_t ContextMemory::spare_begin() const noexcept {
  if (!spec_.window) return 0;
  const std::int64_t begin = window_begin(spec_, length()) - spec_.window->block;
  return std::max(begin, std::min(sink_count(spec_), length()));
}

ContextMemory ContextMemory::clone() const { return ContextMemory(store_.clone(), *this); }

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
  const std::int64_t begin = window_begin(spec_, length);
  if (begin < length && begin < kept_from_) {
    return memory_error(ErrorCode::kInvalidArgument,
                        "truncate: after " + std::to_string(length) +
                            " tokens the next query would see position " + std::to_string(begin) +
                            ", but rows before position " + std::to_string(kept_from_) +
                            " were dropped by '" + to_string(spec_) + "'");
  }
  VOLVELLE_RETURN_IF_ERROR(store_.truncate(first_row_at(length)));
  tokens_.resize(static_cast<std::size_t>(length));
  kept_from_ = std::min(kept_from_, length);
  return {};
}

Status ContextMemory::write_into(std::shared_ptr<RowBlock> block) {
  if (length() != 0 || !pending_.empty()) {
    return memory_error(ErrorCode::kInvalidArgument,
                        "write_into: the memory already has " + std::to_string(length()) +
                            " tokens; only an empty one can be written into a file");
  }
  return store_.adopt(std::move(block), {});
}

std::vector<std::pair<std::int64_t, std::int64_t>> ContextMemory::rows_to_keep() const {
  const std::int64_t sink_end = first_row_at(std::min(sink_count(spec_), length()));
  const std::int64_t begin = first_row_at(std::min(std::max(kept_from_, spare_begin()), length()));
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
