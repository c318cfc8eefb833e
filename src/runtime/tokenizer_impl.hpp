// What a Tokenizer holds; only src/runtime sees it.
#pragma once

#include "runtime/engine.hpp"
#include "volvelle/runtime/tokenizer.hpp"

namespace volvelle {

struct Tokenizer::Impl {
  const llama_vocab* vocab;
  explicit Impl(const llama_vocab* v) : vocab(v) {}
};

}  // namespace volvelle
