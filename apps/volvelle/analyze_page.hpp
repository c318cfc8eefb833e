// One HTML page of an analysis, with nothing outside of it: heat maps of layers and heads, and the
// logit curves of the head that is chosen.
#pragma once

#include <string>

#include "output.hpp"

namespace volvelle::cli {

/// `analysis`: the JSON report of `volvelle analyze`.
std::string analysis_page(const Json& analysis);

}  // namespace volvelle::cli
