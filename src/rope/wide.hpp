// Arithmetic with 113 bits, for frequencies whose phases must be exact to the integer far out.
// Only +, -, *, / are used (roots by Newton's method), so no library of functions is needed.
// Thread rule: pure functions.
#pragma once

#include <cmath>
#include <cstdint>

namespace volvelle {

#if defined(__SIZEOF_FLOAT128__)
__extension__ typedef __float128 Wide;
#else
using Wide = long double;
#endif

/// 2 pi from its decimal digits, as integers that are exact.
inline Wide two_pi() noexcept {
  const Wide digits = static_cast<Wide>(1'000'000'000'000'000'000ULL);
  return 6 + (static_cast<Wide>(283'185'307'179'586'476ULL) +
              static_cast<Wide>(925'286'766'559'005'768ULL) / digits) /
                 digits;
}

inline Wide power(Wide x, int n) noexcept {
  Wide result = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 == 1) result *= x;
  }
  return result;
}

/// x^(1/n), x > 0.
inline Wide root(Wide x, int n) noexcept {
  Wide y = static_cast<Wide>(std::pow(static_cast<double>(x), 1.0 / n));
  for (int i = 0; i < 4; ++i) y += y * (x / power(y, n) - 1) / n;  // doubles the digits each time
  return y;
}

/// round(2^64 x / 2 pi) modulo 2^64: the turns of angle x >= 0 as a 64-bit fraction.
inline std::uint64_t turns_of(Wide x) noexcept {
  Wide turns = x / two_pi();
  turns -= static_cast<Wide>(static_cast<std::uint64_t>(turns));
  const Wide half_word = static_cast<Wide>(4294967296ULL);
  const Wide scaled = turns * half_word;
  const auto high = static_cast<std::uint64_t>(scaled);
  const Wide low = (scaled - static_cast<Wide>(high)) * half_word;
  return (high << 32) + static_cast<std::uint64_t>(low + static_cast<Wide>(0.5));
}

}  // namespace volvelle
