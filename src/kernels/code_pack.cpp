// Where each level lies in a tile, and packing through it. Plain integer code: packing is a small
// part of the cost of coding a row, whose projection is a product with a matrix.
#include <cstring>

#include "kernels/code_scan.hpp"

namespace volvelle {
namespace {

/// Place of (part of) a level: `bits` wide, `shift` into its byte.
struct Place {
  std::size_t byte = 0;
  int shift = 0;
};

constexpr std::size_t kNibblePlaneKey = 128;    // bytes of a quad's nibbles
constexpr std::size_t kNibblePlaneValue = 512;  // bytes of a unit's nibbles

Place key_nibble(std::size_t plane, int t, int c) {
  const auto vector = static_cast<std::size_t>(t / 32);
  return {plane + vector * 64 + static_cast<std::size_t>(t % 16 * 4 + c), t % 32 < 16 ? 0 : 4};
}
Place key_pair(std::size_t plane, int t, int c) {
  return {plane + static_cast<std::size_t>(t % 16 * 4 + c), t / 16 * 2};
}
Place value_nibble(std::size_t plane, int t, int c) {
  const auto vector = static_cast<std::size_t>(t / 8);
  return {plane + vector * 64 + static_cast<std::size_t>(c * 4 + t % 4), t % 8 < 4 ? 0 : 4};
}
Place value_pair(std::size_t plane, int t, int c) {
  const auto vector = static_cast<std::size_t>(t / 16);
  return {plane + vector * 64 + static_cast<std::size_t>(c * 4 + t % 4), t % 16 / 4 * 2};
}

/// Geometry of one kind of tile: size of a unit, of its plane of nibbles, and places in it.
struct Geometry {
  int unit;
  std::size_t nibble_plane;
  Place (*nibble)(std::size_t, int, int);
  Place (*pair)(std::size_t, int, int);
};
constexpr Geometry kKeys{kKeyCodeUnit, kNibblePlaneKey, key_nibble, key_pair};
constexpr Geometry kValues{kValueCodeUnit, kNibblePlaneValue, value_nibble, value_pair};

unsigned get(const std::byte* tile, Place place, unsigned mask) {
  return (static_cast<unsigned>(tile[place.byte]) >> place.shift) & mask;
}

/// Puts (level >> shift) & mask of all rows for the `unit` coordinates from `first` on at their
/// places in a plane.
template <class PlaceOf>
void pack_plane(const std::uint8_t* levels, int n, int first, int unit, int shift, unsigned mask,
                std::byte* plane, PlaceOf place_of) {
  for (int t = 0; t < kCodeTile; ++t) {
    const std::uint8_t* row = levels + t * n + first;
    for (int c = 0; c < unit; ++c) {
      const Place place = place_of(std::size_t{0}, t, c);
      const unsigned level = (static_cast<unsigned>(row[c]) >> shift) & mask;
      plane[place.byte] |= static_cast<std::byte>(level << place.shift);
    }
  }
}

template <class Nibble, class Pair>
void pack(const CodeWidths& widths, const std::uint8_t* levels, int unit, std::size_t nibble_plane,
          std::byte* tile, Nibble nibble, Pair pair) {
  std::memset(tile, 0, widths.tile_bytes());
  const int n = widths.total();
  int i = 0;
  for (; i < widths.n8; i += unit, tile += 2 * nibble_plane) {
    pack_plane(levels, n, i, unit, 4, 15U, tile, nibble);
    pack_plane(levels, n, i, unit, 0, 15U, tile + nibble_plane, nibble);
  }
  for (; i < widths.n8 + widths.n4; i += unit, tile += nibble_plane)
    pack_plane(levels, n, i, unit, 0, 15U, tile, nibble);
  for (; i < n; i += unit, tile += nibble_plane / 2)
    pack_plane(levels, n, i, unit, 0, 3U, tile, pair);
}

/// Calls the one of the functions that fits the width of level (t, i), with its place or places.
template <class Byte, class Nibble, class Pair>
void visit(const Geometry& geometry, const CodeWidths& widths, int i, int t, Byte on_byte,
           Nibble on_nibble, Pair on_pair) {
  const std::size_t nibbles = geometry.nibble_plane;
  const int unit = geometry.unit;
  const auto units = [&](int n) { return static_cast<std::size_t>(n / unit); };
  if (i < widths.n8) {
    const std::size_t plane = units(i) * 2 * nibbles;
    return on_byte(geometry.nibble(plane, t, i % unit),
                   geometry.nibble(plane + nibbles, t, i % unit));
  }
  const std::size_t after8 = units(widths.n8) * 2 * nibbles;
  i -= widths.n8;
  if (i < widths.n4) return on_nibble(geometry.nibble(after8 + units(i) * nibbles, t, i % unit));
  const std::size_t after4 = after8 + units(widths.n4) * nibbles;
  i -= widths.n4;
  return on_pair(geometry.pair(after4 + units(i) * nibbles / 2, t, i % unit));
}

std::uint8_t level_at(const Geometry& geometry, const CodeWidths& widths, const std::byte* tile,
                      int t, int i) {
  unsigned level = 0;
  visit(
      geometry, widths, i, t,
      [&](Place high, Place low) { level = get(tile, high, 15) << 4 | get(tile, low, 15); },
      [&](Place place) { level = get(tile, place, 15); },
      [&](Place place) { level = get(tile, place, 3); });
  return static_cast<std::uint8_t>(level);
}

}  // namespace

void pack_key_tile(const CodeWidths& widths, const std::uint8_t* levels, std::byte* tile) noexcept {
  pack(
      widths, levels, kKeyCodeUnit, kNibblePlaneKey, tile,
      [](std::size_t plane, int t, int c) { return key_nibble(plane, t, c); },
      [](std::size_t plane, int t, int c) { return key_pair(plane, t, c); });
}
void pack_value_tile(const CodeWidths& widths, const std::uint8_t* levels,
                     std::byte* tile) noexcept {
  pack(
      widths, levels, kValueCodeUnit, kNibblePlaneValue, tile,
      [](std::size_t plane, int t, int c) { return value_nibble(plane, t, c); },
      [](std::size_t plane, int t, int c) { return value_pair(plane, t, c); });
}
std::uint8_t key_level(const CodeWidths& widths, const std::byte* tile, int t, int i) noexcept {
  return level_at(kKeys, widths, tile, t, i);
}
std::uint8_t value_level(const CodeWidths& widths, const std::byte* tile, int t, int i) noexcept {
  return level_at(kValues, widths, tile, t, i);
}

}  // namespace volvelle
