// What the weights of a layer say about its heads: the queries that they can make, and projections
// of queries and keys for codes that know no text.
#pragma once

#include <vector>

#include "bounds/edit_bound.hpp"
#include "index/codec_study.hpp"
#include "runtime/model_weights.hpp"
#include "runtime/query_path.hpp"

namespace volvelle {

/// Where the bands of a layer's heads lie; fails by name for layers of unknown rotation.
Result<BandLayout> band_layout(const Model& model, int layer);

/// [n_heads]: bounds of queries as attention sees them, rotated and scaled. Fails by name where the
/// graph makes queries in a way that is not known. Of F32 files: with weights of other types the
/// engine rounds activations too, which is not part of the bound.
Result<std::vector<QueryFactor>> query_factors(const Model& model, const ModelWeights& weights,
                                               int layer);

/// [n_kv_heads]: projections with the gains around them. Norms of heads are left out: they depend
/// on the input.
Result<std::vector<HeadWeights>> head_weights(const Model& model, const ModelWeights& weights,
                                              int layer);

}  // namespace volvelle
