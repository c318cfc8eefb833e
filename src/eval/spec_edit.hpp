// What a memory spec keeps in place of the rows of one head: rounded by its storage types, or what
// their codes stand for. An edit of keys and values like any other, for audits.
#pragma once

#include <vector>

#include "index/codec_study.hpp"
#include "volvelle/memory/memory_spec.hpp"
#include "volvelle/rope/rope_config.hpp"

namespace volvelle {

struct EditedRows {
  std::vector<float> keys;    // [n, dim]
  std::vector<float> values;  // [n, value_dim]
};

/// Rows of `sample`, which has values, as `spec` keeps them. Codes are made of the sample's own
/// rows and late queries, as a memory makes them; the first four rows, the last 64 and those behind
/// the last tile of codes are read exactly. `coded`: whether the layer has codes at all, where the
/// spec has a topk term.
Result<EditedRows> edited_rows(const MemorySpec& spec, const HeadSample& sample,
                               const RopeConfig& rope, bool coded);

}  // namespace volvelle
