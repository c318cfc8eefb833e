// Times reads through an index on rows of a model's shapes, without the model: one layer, any
// depth. Rows and queries are random numbers, so reads with an error limit, whose cost depends on
// the rows, are only indicated. Private to eval. Cost: memory for one layer's rows and codes.
#pragma once

#include "eval/attention_timing.hpp"
#include "volvelle/memory/memory_index.hpp"

namespace volvelle {

struct IndexTiming {
  double exact_seconds = 0.0;    // of one read of all rows, the median of a few
  double index_seconds = 0.0;    // of one through the index, alternating with the former
  double bytes_per_token = 0.0;  // of codes, all KV heads
};
/// Of one query behind `request.prefix` rows; the layer must have no window.
Result<IndexTiming> time_index(const TimingRequest& request, const IndexPlan& plan,
                               AttendWorkspace& workspace);

}  // namespace volvelle
