// Integers that must not be confused are distinct types.
//
// Position: where a token stands in its sequence (what RoPE rotates by). Row: index of a stored
// key/value row. In a memory that dropped or merged rows the two differ, so neither converts into
// the other or into a plain integer by itself.
#pragma once

#include <compare>
#include <cstdint>

namespace volvelle {

template <class Tag>
class StrongIndex {
 public:
  constexpr StrongIndex() = default;
  explicit constexpr StrongIndex(std::int64_t value) noexcept : value_(value) {}
  constexpr std::int64_t value() const noexcept { return value_; }

  friend constexpr auto operator<=>(StrongIndex, StrongIndex) = default;
  friend constexpr StrongIndex operator+(StrongIndex a, std::int64_t n) noexcept {
    return StrongIndex(a.value_ + n);
  }
  friend constexpr StrongIndex operator-(StrongIndex a, std::int64_t n) noexcept {
    return StrongIndex(a.value_ - n);
  }
  friend constexpr std::int64_t operator-(StrongIndex a, StrongIndex b) noexcept {
    return a.value_ - b.value_;
  }
  constexpr StrongIndex& operator++() noexcept { return ++value_, *this; }

 private:
  std::int64_t value_ = 0;
};

using Position = StrongIndex<struct PositionTag>;
using Row = StrongIndex<struct RowTag>;
using LayerIndex = StrongIndex<struct LayerTag>;

/// A token id of the model's vocabulary.
using TokenId = std::int32_t;

}  // namespace volvelle
