// Queries and keys of a text, head by head, for studies of what heads do.
#pragma once

#include <span>
#include <vector>

#include "eval/progress_meter.hpp"
#include "index/codec_study.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// [layer][kv head]; nothing for layers with a window of their own, without rows, or whose rows
/// other layers read too.
using LayerSamples = std::vector<std::vector<HeadSample>>;

/// Reads the tokens exactly and keeps what the layers' heads ask and store, after RoPE. Needs
/// n_heads x tokens x head_dim floats for each layer.
Result<LayerSamples> capture_heads(const Model& model, std::span<const TokenId> tokens,
                                   const SessionOptions& options, ProgressMeter& meter,
                                   bool with_values = false);

}  // namespace volvelle
