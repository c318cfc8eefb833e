// Where a command may write its result.
#pragma once

#include <filesystem>
#include <vector>

#include "volvelle/base/result.hpp"

namespace volvelle::cli {

/// Finds out before the long work whether `output` can be written at all, and that it is none of
/// the command's inputs.
Status check_output(const std::filesystem::path& output,
                    const std::vector<std::filesystem::path>& inputs);

}  // namespace volvelle::cli
