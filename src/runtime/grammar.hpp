// The engine's grammar sampler, guarded: it reads a grammar by recursion, so size and nesting are
// limited before it sees the text. Cost: one pass over the text.
#pragma once

#include <string>

#include "runtime/engine.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

/// For a GBNF text that is not empty; its rule "root" is the whole answer.
Result<engine::SamplerPtr> make_grammar(const llama_vocab* vocab, const std::string& grammar);

}  // namespace volvelle
