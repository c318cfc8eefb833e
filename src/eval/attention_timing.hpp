// Times our attention on rows of a model's shapes, without the model: one layer, any depth. The
// rows are zeros, which cost what others cost. Private to eval. Cost: memory for one layer's rows,
// and a few calls.
#pragma once

#include "volvelle/attention/attend.hpp"
#include "volvelle/memory/kv_store.hpp"

namespace volvelle {

struct TimingRequest {
  LayerShape shape;
  int n_heads = 0;
  ElementType k_type = ElementType::kF16;
  ElementType v_type = ElementType::kF16;
  std::int64_t prefix = 0;    // rows before the queries
  std::int64_t n_tokens = 1;  // queries; their own rows come on top
  int n_threads = 1;
};

/// Seconds of one call, the median of a few. A window of the shape is respected.
Result<double> time_attention(const TimingRequest& request, AttendWorkspace& workspace);

}  // namespace volvelle
