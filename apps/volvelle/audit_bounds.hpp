// `volvelle audit --bounds`: edits of the keys of a text against the bounds that were known before.
#pragma once

#include <string>

#include "console.hpp"
#include "options.hpp"
#include "output.hpp"

namespace volvelle::cli {

struct BoundsFlags {
  bool bounds = false;
  std::int64_t queries = 8;
};
void declare_bounds(CLI::App& app, BoundsFlags& flags);

/// The first `n_tokens` of the text named `file`.
Result<Report> audit_bounds(const ModelFlags& model_flags, const MemorySpec& spec,
                            const BoundsFlags& flags, const std::string& file,
                            std::int64_t n_tokens, Console& console);

}  // namespace volvelle::cli
