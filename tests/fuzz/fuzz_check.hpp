// What every reader owes for any input, checked by the fuzzers: no crash, and a message that is one
// line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "volvelle/base/result.hpp"

namespace volvelle::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();  // libFuzzer reports the input
}

inline void require_one_line(const Error& error) {
  require(!error.message.empty() && error.message.size() < 2000);
  for (const char c : error.message) require(static_cast<unsigned char>(c) >= 0x20);
}

inline std::span<const std::byte> as_bytes(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace volvelle::fuzz
