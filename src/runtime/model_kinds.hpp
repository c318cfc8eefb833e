// Kinds of models that are refused by the name of their architecture: what they lack of a plain
// decoder with a KV cache stands in the engine's code, not in the file. Private to runtime.
#pragma once

#include "volvelle/io/gguf.hpp"

namespace volvelle {

/// Before any other look at the metadata, which means something else for these.
Status require_served_kind(const GgufFile& file);

}  // namespace volvelle
