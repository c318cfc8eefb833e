// Logits of one step, copied out of the engine's buffer, which the next graph overwrites. Private
// to runtime.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "runtime/engine.hpp"

namespace volvelle {

class LogitRows {
 public:
  explicit LogitRows(std::int64_t n_vocab) : n_vocab_(static_cast<std::size_t>(n_vocab)) {}

  void clear() noexcept { n_ = 0; }
  /// Forgets all but the first `n` rows.
  void truncate(std::int64_t n) noexcept { n_ = static_cast<std::size_t>(n); }
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(n_); }
  /// Appends the logits of token `i` of the batch that just ran, and returns the copy.
  std::span<const float> append(llama_context* context, int i) {
    const float* const row = llama_get_logits_ith(context, i);
    if (rows_.size() < (n_ + 1) * n_vocab_) rows_.resize((n_ + 1) * n_vocab_);
    std::copy_n(row, n_vocab_, rows_.begin() + static_cast<std::ptrdiff_t>(n_ * n_vocab_));
    ++n_;
    return row_at(n_ - 1);
  }
  std::span<const float> row(std::int64_t i) const {
    if (i < 0 || i >= size()) throw std::logic_error("logits: the last step kept no such row");
    return row_at(static_cast<std::size_t>(i));
  }

 private:
  std::span<const float> row_at(std::size_t i) const {
    return std::span(rows_).subspan(i * n_vocab_, n_vocab_);
  }

  std::size_t n_vocab_;
  std::size_t n_ = 0;
  std::vector<float> rows_;  // [at least n_, n_vocab]; never shrinks
};

}  // namespace volvelle
