// The last step of a row of output.
#pragma once

#include <cstdint>

namespace volvelle {

/// out[i] = o[i] * factor for n elements; a negative zero becomes zero, so that bits do not depend
/// on skipped zero weights. Returns whether all that was written is finite. Same bits on every
/// target.
bool scale_row(const float* o, float factor, std::int64_t n, float* out) noexcept;

}  // namespace volvelle
