// What a model is, read from its GGUF metadata, and whether this version can serve it. This is the
// first of three gates: the engine's own view and every computed graph are checked too. Private to
// runtime.
#pragma once

#include "volvelle/io/gguf.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {

/// Fills architecture, sizes, layers, RoPE, chat template and tokenizer hash. Errors name the
/// missing or impossible key.
Result<ModelInfo> read_model_info(const GgufFile& file);

/// Refuses by name what our memory would not serve exactly.
Status require_servable(const GgufFile& file, const ModelInfo& info);

}  // namespace volvelle
