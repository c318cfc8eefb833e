// Sizes of coded rows: how many coordinates have 8, 4 and 2 bits. Shared by the kernels that scan
// codes and by the index that writes them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace volvelle {

/// Rows of a tile, the unit in which codes are stored and scanned.
inline constexpr std::int64_t kCodeTile = 64;
/// Coordinates of each width come in whole multiples of these.
inline constexpr int kKeyCodeUnit = 4;     // four coordinates of a key are multiplied at once
inline constexpr int kValueCodeUnit = 16;  // sixteen coordinates of a value are added up at once

/// Coordinates in the order of the code: first those with 8 bits, then 4, then 2. Others have none.
struct CodeWidths {
  int n8 = 0;
  int n4 = 0;
  int n2 = 0;
  bool operator==(const CodeWidths&) const = default;
  constexpr int total() const noexcept { return n8 + n4 + n2; }
  constexpr int bits() const noexcept { return 8 * n8 + 4 * n4 + 2 * n2; }
  /// Bytes of the levels of kCodeTile rows.
  constexpr std::size_t tile_bytes() const noexcept {
    return static_cast<std::size_t>(bits()) * static_cast<std::size_t>(kCodeTile) / 8;
  }
  /// Width of coordinate i, in bits.
  constexpr int width_of(int i) const noexcept {
    return i < n8 ? 8 : i < n8 + n4 ? 4 : i < total() ? 2 : 0;
  }
};

}  // namespace volvelle
