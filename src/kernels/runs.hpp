// Rows of one KV head that lie side by side in memory. Kernels get short lists of them, so no
// kernel knows about stores.
#pragma once

#include <cstddef>
#include <cstdint>

namespace volvelle {

struct KeyValueRun {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::int64_t n = 0;
  std::int64_t offset = 0;  // of the first row inside its key tile; the decode kernel ignores it
};

/// Padding of scratch rows, in floats: lanes of the widest vector of any target.
inline constexpr std::int64_t kLanePad = 16;
constexpr std::int64_t pad_lanes(std::int64_t n) noexcept {
  return (n + kLanePad - 1) / kLanePad * kLanePad;
}

}  // namespace volvelle
