// How alike a key's address is to itself some positions away: g(D) = sum_b w_b cos(theta_b D). The
// address of a stored key at a later time is the key turned by one unitary map per step, so
// distance enters through phases alone (RoAM). Integers that follow from the configuration: where g
// first falls below a level, and where it comes back ("aliases"). Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rope/frequencies.hpp"

namespace volvelle {

/// weights [n_bands], adding up to 1; empty: all alike.
double address_kernel(const BandFrequencies& bands, std::span<const double> weights,
                      std::uint64_t distance);
/// g(0) to g(last). Cost: n_bands (last + 1) cosines.
std::vector<double> kernel_table(const BandFrequencies& bands, std::span<const double> weights,
                                 std::int64_t last);

/// The first distance at which a table is below `level` (at most it, for `or_equal`); -1: none.
std::int64_t first_below(std::span<const double> table, double level, bool or_equal = false);

/// Where the kernel comes back most strongly after its first value of 0 or less.
struct KernelAlias {
  std::int64_t distance = -1;  // -1: it never falls to 0 within the table
  double value = 0.0;
  std::int64_t runner_up = -1;  // the next best distance that is no neighbour of the first
  double gap = 0.0;             // its value is that much lower
};
KernelAlias kernel_alias(std::span<const double> table);

/// The integer next to the wavelength of the slowest band that turns at all; -1: beyond 2^62.
std::int64_t band_alias(const BandFrequencies& bands);

/// The first distance up to `limit` at which each of the `n_slowest` bands has come back to within
/// `tolerance` radians of its start, after all of them have left it; 0: none. Looks only at windows
/// of the slowest band, a share of about tolerance / pi of all integers.
std::int64_t joint_return(const BandFrequencies& bands, int n_slowest, double tolerance,
                          std::int64_t limit);

/// The first position that a number type can not tell from the one before: "bf16", "f16", "f32"; 0
/// for other names.
std::int64_t first_indistinct_position(std::string_view type);

}  // namespace volvelle
