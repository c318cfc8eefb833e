// A memory of the same tokens with other rows: what compressing a memory after reading would leave.
#pragma once

#include <functional>
#include <span>

#include "volvelle/memory/context_memory.hpp"

namespace volvelle {

/// Rows of one layer and KV head, [n, dim], for one position after the other, to be changed.
struct HeadRows {
  LayerIndex layer;
  int head = 0;
  bool keys = false;  // else values
  int dim = 0;
  std::span<float> rows;
};
using HeadEdit = std::function<Status(const HeadRows& rows)>;

/// `spec`: of the new memory; it may drop rows that `memory` has. Its rows have the storage types
/// of `memory`. Cost: every row is converted twice. No index is taken over.
Result<ContextMemory> edited_memory(const ContextMemory& memory, const MemorySpec& spec,
                                    const HeadEdit& edit);

}  // namespace volvelle
