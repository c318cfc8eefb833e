// What the engine would stop the process on instead of returning an error: well-formed files whose
// metadata or tensors break a rule that it asserts, or does not look at before it computes. Private
// to runtime.
#pragma once

#include "volvelle/io/gguf.hpp"

namespace volvelle {

/// Before the engine sees the file. Checks neither the format (read_gguf does) nor what the engine
/// itself refuses with an error: missing tensors, shapes other than its formula, wrong value types.
Status check_for_engine(const GgufFile& file);

}  // namespace volvelle
