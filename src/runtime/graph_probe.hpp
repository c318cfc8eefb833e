// What a model's graph does with its KV cache, learned from the graph itself.
//
// A small context builds the model's graph, and a callback looks at its nodes and turns every one
// into a no-op, so nothing is computed. Which layers own rows, their sizes, who reads them and
// through which sliding window then comes from the nodes and from the masks that the engine fills
// in, not from a list of architectures. Cost: two graphs, no arithmetic.
#pragma once

#include <vector>

#include "runtime/engine.hpp"
#include "runtime/query_path.hpp"
#include "volvelle/memory/kv_store.hpp"

namespace volvelle {

struct ProbedLayer {
  LayerShape shape;  // no KV heads: the layer stores nothing
  int readers = 0;   // attention nodes that read this layer's rows (more than one: shared KV cache)
  int n_heads = 0;   // query heads, the most of all readers
  QueryPath queries;  // of the first reader
};

/// [n_layers]. Refuses by name what is not causal attention over the rows of one sequence, with or
/// without a plain sliding window.
Result<std::vector<ProbedLayer>> probe_layers(llama_model* model);

}  // namespace volvelle
