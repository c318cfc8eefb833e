// The attention weights themselves: what share each visible row has in a query's output.
//
//   w_i = exp(s_i) / (sum over visible j of exp(s_j) + e^sink),   s_i = scale * q.k_i, soft cap
//   applied
//
// attend() never forms them; this is for looking at attention (research, evidence), not for
// running a model. Rows of any storage type, whatever segments they lie in. Cost: head_dim_k
// multiply-adds per row and head, each row read and converted once for all heads of its group.
// Nothing is allocated.
#pragma once

#include <cstdint>
#include <span>

#include "volvelle/attention/attend.hpp"

namespace volvelle {

/// Number of rows that a token sees, which is the length of its weights.
std::int64_t n_visible(const VisibleRows& visible) noexcept;
/// The row that entry `i` of the weights belongs to: sinks first, then [begin, end).
std::int64_t visible_row(const VisibleRows& visible, std::int64_t i) noexcept;

/// Writes the weights of query token `token`, head `head` to `out` [n_visible]. Returns the share
/// of the learned sink, 0 without one; the entries sum up to 1 minus that, unless nothing is seen.
/// NaN where a score is not finite. A wrong token, head or length throws std::logic_error.
double attention_weights(const AttendTask& task, std::int64_t token, int head,
                         std::span<float> out);

/// The same for all query heads of one KV head: `out` [group, n_visible], `sink_shares` [group] or
/// empty. Does not throw on a valid call.
void group_attention_weights(const AttendTask& task, std::int64_t token, int kv_head,
                             std::span<float> out, std::span<double> sink_shares);

}  // namespace volvelle
