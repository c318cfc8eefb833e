// Bare names on the command line: a path, or a file that setup put into the cache folder. A path
// that exists always wins, so a name in the cache never hides a local file. The error names both
// places that were looked at.
#include <cstdlib>

#include "volvelle/runtime/model.hpp"

namespace volvelle {

std::filesystem::path cache_folder() {
  if (const char* folder = std::getenv("VOLVELLE_CACHE"); folder != nullptr && *folder != '\0')
    return folder;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};  // never a folder that depends on where we run
  return std::filesystem::path(home) / ".cache" / "volvelle";
}

Result<std::filesystem::path> find_input(const std::string& name, const std::string& kind) {
  std::error_code ignored;
  const std::filesystem::path path(name);
  if (std::filesystem::exists(path, ignored)) return path;
  if (cache_folder().empty()) {
    return Error{ErrorCode::kNotFound, "input: '" + name +
                                           "' is not a file, and there is no cache folder to look "
                                           "in because HOME and VOLVELLE_CACHE are not set"};
  }
  const std::filesystem::path kept = cache_folder() / kind / path;
  if (!name.empty() && path.is_relative() && std::filesystem::exists(kept, ignored)) return kept;
  return Error{ErrorCode::kNotFound, "input: '" + name + "' is neither a file nor a name in " +
                                         (cache_folder() / kind).string() +
                                         "; check the path, or run scripts/setup.sh"};
}

}  // namespace volvelle
