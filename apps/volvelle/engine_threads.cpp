// A thread that spins at a barrier wastes its time slice when another process wants the core: with
// the runtime's default a second busy process made decoding on two cores 7 to 8 times slower. A
// thousand spins lose 1 % alone and 2.5 times beside it (docs/benchmarks.md).
#include "engine_threads.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace volvelle::cli {

void settle_engine_threads(char** argv) {
  constexpr const char* kSpins = "1000";
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  // Started through the dynamic loader, "self" is the loader and argv is not its.
  if (failed || self.filename().string().starts_with("ld-")) return;
  if (setenv("GOMP_SPINCOUNT", kSpins, 0) != 0) return;
  execv(self.c_str(), argv);  // returns only if it fails; then the default it is
}

}  // namespace volvelle::cli
