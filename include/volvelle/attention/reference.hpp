// The same attention in float64 by plain loops: what every kernel, tier and split is compared with.
// It shares no code with the kernels, visits rows in ascending order and rounds nothing on the way.
// Cost: one pass over all rows per query head; for tests and checks only.
#pragma once

#include <vector>

#include "volvelle/attention/attend.hpp"
#include "volvelle/attention/attention_state.hpp"

namespace volvelle {

/// State of query token `token`, head `head` of the task in double precision, rows in ascending
/// order. O(rows * head_dim). The learned sink, if any, is included. Ignores task.out, m, d.
BasicAttentionState<double> reference_state(const AttendTask& task, std::int64_t token, int head);

/// Normalised outputs of the whole task: [n_tokens, n_heads, head_dim_v], dense.
std::vector<double> reference_attend(const AttendTask& task);

}  // namespace volvelle
