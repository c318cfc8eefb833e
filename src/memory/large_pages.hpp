// Anonymous memory that begins at a large page, so that it can move to large pages.
#pragma once

#include <cstddef>
#include <memory>

namespace volvelle {

inline constexpr std::size_t kLargePage = std::size_t{1}
                                          << 21;  // of x86-64 and most AArch64 systems

/// Lazily resident zeros, aligned to a large page if there is room for one. Nothing if the system
/// has no memory (see errno) or the size overflows.
std::shared_ptr<std::byte> map_from_large_page(std::size_t bytes);

}  // namespace volvelle
