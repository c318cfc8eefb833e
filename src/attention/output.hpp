// From a state in base 2 to what the caller asked for: a normalised output or a state in natural
// logarithms.
#pragma once

#include <cstdint>

#include "volvelle/attention/attend.hpp"

namespace volvelle {

/// State of one row as the kernels leave it: m in base 2, o not normalised.
struct RowState {
  const float* o = nullptr;
  float m = 0.0f;
  float d = 0.0f;
};

/// Writes token `token`, head `head` from its state, merging the learned sink. Returns false if
/// something written is not finite.
bool write_output(const AttendTask& task, std::int64_t token, int head,
                  const RowState& state) noexcept;

}  // namespace volvelle
