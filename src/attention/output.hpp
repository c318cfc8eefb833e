// From a state in base 2 to what the caller asked for: a normalised output or a state in natural
// logarithms.
#pragma once

#include <cstdint>

#include "volvelle/attention/attend.hpp"

namespace volvelle {

/// Writes token `token`, head `head` from the state {o, m, d} (m in base 2, o not normalised),
/// merging the learned sink. Returns false if something written is not finite.
bool write_output(const AttendTask& task, std::int64_t token, int head, const float* o, float m,
                  float d) noexcept;

}  // namespace volvelle
