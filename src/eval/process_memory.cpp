// Lines "Name:   12345 kB" of /proc files. A missing line is an error: a guess would be a wrong
// plan.
#include "eval/process_memory.hpp"

#include <fstream>
#include <string>

#include "base/result_macros.hpp"

namespace volvelle {
namespace {

Result<std::uint64_t> read_kilobytes(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    return std::uint64_t{std::strtoull(line.c_str() + name.size() + 1, nullptr, 10)} * 1024;
  }
  return Error{ErrorCode::kUnsupported,
               std::string("plan: no '") + name + "' in " + path + "; give the RAM yourself"};
}

}  // namespace

Result<ResidentBytes> resident_bytes() {
  ResidentBytes bytes;
  VOLVELLE_ASSIGN_OR_RETURN(bytes.anonymous, read_kilobytes("/proc/self/status", "RssAnon"));
  VOLVELLE_ASSIGN_OR_RETURN(bytes.file, read_kilobytes("/proc/self/status", "RssFile"));
  return bytes;
}

Result<std::uint64_t> available_bytes() { return read_kilobytes("/proc/meminfo", "MemAvailable"); }

}  // namespace volvelle
