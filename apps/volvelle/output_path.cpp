// Checks of -o; the files are compared as files, so links to an input are found too.
#include "output_path.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "options.hpp"

namespace volvelle::cli {

namespace fs = std::filesystem;

Status check_output(const fs::path& output, const std::vector<fs::path>& inputs) {
  std::error_code ignored;
  for (const fs::path& input : inputs) {
    if (!fs::equivalent(output, input, ignored)) continue;  // also through links
    return usage_error(
        fmt::format("-o {} is an input of this command: choose another name", output.string()));
  }
  if (fs::is_directory(output, ignored)) {
    return usage_error(fmt::format("-o {} is a folder: give a file name", output.string()));
  }
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored)) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("writing {}: the folder {} does not exist: create it first",
                             output.string(), folder.string())};
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return Error{ErrorCode::kIo, fmt::format("writing {}: the folder {} can not be written: choose "
                                             "another one",
                                             output.string(), folder.string())};
  }
  return {};
}

}  // namespace volvelle::cli
