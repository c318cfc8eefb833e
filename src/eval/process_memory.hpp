// How much memory this process uses and the system has, from /proc. Resident means: in RAM now.
// Private to eval. Cost: one small read each.
#pragma once

#include <cstdint>

#include "volvelle/base/result.hpp"

namespace volvelle {

struct ResidentBytes {
  std::uint64_t anonymous = 0;  // heap, rows in RAM
  std::uint64_t file = 0;       // mapped files: program, libraries, weights
};
Result<ResidentBytes> resident_bytes();

/// What can be used without swapping.
Result<std::uint64_t> available_bytes();

}  // namespace volvelle
