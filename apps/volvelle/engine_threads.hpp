// How the engine's threads wait for each other, which its OpenMP runtime reads from the environment
// when it is loaded, before main() begins.
#pragma once

namespace volvelle::cli {

/// Starts this program again with short spinning, unless the environment already says something
/// about it. Does nothing if that fails. argv is that of main().
void settle_engine_threads(char** argv);

}  // namespace volvelle::cli
