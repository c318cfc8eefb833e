// One mmap with room to begin at a large page; what is left out is never resident.
#include "memory/large_pages.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "volvelle/base/checked.hpp"

namespace volvelle {

std::shared_ptr<std::byte> map_from_large_page(std::size_t bytes) {
  const bool aligned = bytes >= kLargePage;
  const auto mapped = checked_add(bytes, aligned ? kLargePage : 0);
  if (!mapped) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const start = ::mmap(nullptr, *mapped, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const std::uint64_t past = reinterpret_cast<std::uintptr_t>(start) % kLargePage;
  auto* const base =
      static_cast<std::byte*>(start) + (aligned ? (kLargePage - past) % kLargePage : 0);
  return {base, [start, size = *mapped](std::byte*) { ::munmap(start, size); }};
}

}  // namespace volvelle
