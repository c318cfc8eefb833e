// What the command line of the micro-benchmarks says, and the suites it may name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace volvelle::bench {

struct Settings {
  int threads = 2;
  int rounds = 7;
  std::size_t bytes = std::size_t{192} << 20;  // of K and V that decode walks, beyond the caches
  std::int64_t max_context = 524'288;
  bool processor_time = false;  // see harness.hpp
};

/// Each prints one table. A kernel whose result differs from float64 ends the program.
void decode_suite(const Settings& settings);    // ladder, GB/s beside read bandwidth and L2 speed
void prefill_suite(const Settings& settings);   // ladder, GFLOP/s beside the FMA peak
void types_suite(const Settings& settings);     // decode of every storage type
void contexts_suite(const Settings& settings);  // head_dim 128, 8 KV heads of 4: 4K to 512K rows
void batch_suite(const Settings& settings);     // 1 to 16 tokens: decode kernel over tiled path
void threads_suite(const Settings& settings);   // 1 and 2 threads
void topk_suite(const Settings& settings);      // reads through an index beside exact ones

}  // namespace volvelle::bench
