// What a Tokenizer holds; only src/runtime sees it. The vocabulary belongs to the engine's model,
// which must live longer. Immutable.
#pragma once

#include "runtime/engine.hpp"
#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle {

struct Tokenizer::Impl {
  const llama_vocab* vocab;
  explicit Impl(const llama_vocab* v) : vocab(v) {}
};

}  // namespace volvelle
