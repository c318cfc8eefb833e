// A read through an index, checked against exact attention in double.
#pragma once

#include "volvelle/index/topk_read.hpp"

namespace volvelle {

/// Adds to the workspace's statistics how far the last read of `task` (one token) was from exact:
/// the total variation of each head's weights, whether a proved bound was broken, and the relative
/// error of each output. Call it between that read and the next, on one thread. Reads that can not
/// be audited for want of memory are not counted. Cost: n_heads x rows x (head_dim_k + head_dim_v)
/// double products.
void audit_read(const AttendTask& task, const CodeIndex& index, const TopkPolicy& policy,
                TopkWorkspace& workspace) noexcept;

}  // namespace volvelle
