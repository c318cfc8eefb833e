// Where each level lies in a tile, and packing through it. Plain integer code: packing is a small
// part of the cost of coding a row, whose projection is a product with a matrix.
#include <cstring>

#include "kernels/code_scan.hpp"

namespace volvelle {
namespace {

/// Place of (part of) a level: `shift` into its byte.
struct Place {
  std::size_t byte = 0;
  int shift = 0;
};

/// Places in tiles of keys, relative to the plane of a quad.
struct Keys {
  static constexpr int kUnit = kKeyCodeUnit;
  static constexpr std::size_t kNibblePlane = 128;  // bytes of a quad's nibbles
  static Place nibble(int t, int c) {
    return {static_cast<std::size_t>(t / 32 * 64 + t % 16 * 4 + c), t % 32 < 16 ? 0 : 4};
  }
  static Place pair(int t, int c) { return {static_cast<std::size_t>(t % 16 * 4 + c), t / 16 * 2}; }
};

/// The same for tiles of values, relative to the plane of a unit.
struct Values {
  static constexpr int kUnit = kValueCodeUnit;
  static constexpr std::size_t kNibblePlane = 512;
  static Place nibble(int t, int c) {
    return {static_cast<std::size_t>(t / 8 * 64 + c * 4 + t % 4), t % 8 < 4 ? 0 : 4};
  }
  static Place pair(int t, int c) {
    return {static_cast<std::size_t>(t / 16 * 64 + c * 4 + t % 4), t % 16 / 4 * 2};
  }
};

/// Levels of all rows, and the coordinates of one unit of them.
struct UnitLevels {
  const std::uint8_t* levels;  // [kCodeTile, n]
  int n;
  int first;
};

/// Puts 4 bits (from `shift` on) of each level into a plane of nibbles.
template <class Tile>
void pack_nibbles(const UnitLevels& unit, int shift, std::byte* plane) {
  for (int t = 0; t < kCodeTile; ++t) {
    const std::uint8_t* row = unit.levels + t * unit.n + unit.first;
    for (int c = 0; c < Tile::kUnit; ++c) {
      const Place place = Tile::nibble(t, c);
      plane[place.byte] |=
          static_cast<std::byte>((static_cast<unsigned>(row[c]) >> shift & 15U) << place.shift);
    }
  }
}

template <class Tile>
void pack_pairs(const UnitLevels& unit, std::byte* plane) {
  for (int t = 0; t < kCodeTile; ++t) {
    const std::uint8_t* row = unit.levels + t * unit.n + unit.first;
    for (int c = 0; c < Tile::kUnit; ++c) {
      const Place place = Tile::pair(t, c);
      plane[place.byte] |= static_cast<std::byte>((row[c] & 3U) << place.shift);
    }
  }
}

template <class Tile>
void pack(const CodeWidths& widths, const std::uint8_t* levels, std::byte* tile) {
  constexpr std::size_t kPlane = Tile::kNibblePlane;
  std::memset(tile, 0, widths.tile_bytes());
  UnitLevels unit{levels, widths.total(), 0};
  for (; unit.first < widths.n8; unit.first += Tile::kUnit, tile += 2 * kPlane) {
    pack_nibbles<Tile>(unit, 4, tile);
    pack_nibbles<Tile>(unit, 0, tile + kPlane);
  }
  for (; unit.first < widths.n8 + widths.n4; unit.first += Tile::kUnit, tile += kPlane)
    pack_nibbles<Tile>(unit, 0, tile);
  for (; unit.first < unit.n; unit.first += Tile::kUnit, tile += kPlane / 2)
    pack_pairs<Tile>(unit, tile);
}

unsigned get(const std::byte* plane, Place place, unsigned mask) {
  return (static_cast<unsigned>(plane[place.byte]) >> place.shift) & mask;
}

template <class Tile>
std::uint8_t level_at(const CodeWidths& widths, const std::byte* tile, int t, int i) {
  constexpr std::size_t kPlane = Tile::kNibblePlane;
  const int c = i % Tile::kUnit;
  const auto planes = [](int n) { return static_cast<std::size_t>(n / Tile::kUnit) * kPlane; };
  if (i < widths.n8) {
    tile += 2 * planes(i);
    return static_cast<std::uint8_t>(get(tile, Tile::nibble(t, c), 15) << 4 |
                                     get(tile + kPlane, Tile::nibble(t, c), 15));
  }
  tile += 2 * planes(widths.n8);
  i -= widths.n8;
  if (i < widths.n4)
    return static_cast<std::uint8_t>(get(tile + planes(i), Tile::nibble(t, c), 15));
  tile += planes(widths.n4) + planes(i - widths.n4) / 2;
  return static_cast<std::uint8_t>(get(tile, Tile::pair(t, c), 3));
}

}  // namespace

void pack_key_tile(const CodeWidths& widths, const std::uint8_t* levels, std::byte* tile) noexcept {
  pack<Keys>(widths, levels, tile);
}
void pack_value_tile(const CodeWidths& widths, const std::uint8_t* levels,
                     std::byte* tile) noexcept {
  pack<Values>(widths, levels, tile);
}
std::uint8_t key_level(const CodeWidths& widths, const std::byte* tile, int t, int i) noexcept {
  return level_at<Keys>(widths, tile, t, i);
}
std::uint8_t value_level(const CodeWidths& widths, const std::byte* tile, int t, int i) noexcept {
  return level_at<Values>(widths, tile, t, i);
}

}  // namespace volvelle
