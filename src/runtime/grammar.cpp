// Nesting is counted outside quotes, character classes and comments, as the engine's parser sees
// it. What is wrong inside a grammar only the engine's parser knows; it says so on stderr and hands
// back nothing.
#include "runtime/grammar.hpp"

#include <algorithm>
#include <exception>

namespace volvelle {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 18;
constexpr int kMostNesting = 256;

Error refused(const std::string& what) {
  return {ErrorCode::kInvalidArgument, "sampler: the grammar " + what};
}

/// The deepest nesting of parentheses.
int nesting(const std::string& text) {
  int depth = 0;
  int deepest = 0;
  char closing = 0;  // of the quote, class or comment that `i` is in
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (closing != 0) {
      if (c == '\\' && closing != '\n') ++i;
      if (c == closing) closing = 0;
      continue;
    }
    if (c == '"') closing = '"';
    if (c == '[') closing = ']';
    if (c == '#') closing = '\n';
    if (c == '(') deepest = std::max(deepest, ++depth);
    if (c == ')') --depth;
  }
  return deepest;
}

}  // namespace

Result<engine::SamplerPtr> make_grammar(const llama_vocab* vocab, const std::string& grammar) {
  if (grammar.size() > kMostBytes) {
    return refused("has " + std::to_string(grammar.size()) + " bytes; at most " +
                   std::to_string(kMostBytes) + " are read");
  }
  if (grammar.find('\0') != std::string::npos) return refused("holds a NUL byte; it must be text");
  if (const int depth = nesting(grammar); depth > kMostNesting) {
    return refused("nests parentheses " + std::to_string(depth) + " deep; at most " +
                   std::to_string(kMostNesting) + " are read: give parts names of their own");
  }
  engine::take_errors();
  engine::SamplerPtr sampler;
  std::string reason;
  try {
    sampler.reset(llama_sampler_init_grammar(vocab, grammar.c_str(), "root"));
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (sampler) return sampler;
  if (reason.empty()) reason = engine::take_errors();
  return refused("is not one that the engine can read" + (reason.empty() ? "" : ": " + reason) +
                 "; it must be GBNF with a rule named root");
}

}  // namespace volvelle
