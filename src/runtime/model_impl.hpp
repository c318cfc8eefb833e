// What a Model holds; only src/runtime sees it.
#pragma once

#include "runtime/engine.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {

struct Model::Impl {
  ModelInfo info;
  engine::ModelPtr engine_model;
  std::unique_ptr<Tokenizer> tokenizer;
};

}  // namespace volvelle
