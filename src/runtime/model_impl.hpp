// What a Model holds; only src/runtime sees it. The tokenizer points into the engine's model, so it
// is declared last and destroyed first. Immutable after load.
#pragma once

#include "runtime/engine.hpp"
#include "runtime/query_path.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {

struct Model::Impl {
  ModelInfo info;
  std::vector<QueryPath> queries;  // [n_layers]
  engine::ModelPtr engine_model;
  std::unique_ptr<Tokenizer> tokenizer;
};

}  // namespace volvelle
