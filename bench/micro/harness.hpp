// Alternating measurements: every variant runs once per round, so slow phases of the machine hit
// all of them alike. Reported are the median and the range over the rounds; only ratios inside one
// run are worth quoting.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace volvelle::bench {

struct Variant {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  double best() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double worst() const { return *std::max_element(seconds.begin(), seconds.end()); }
};

/// Seconds on the wall, or of processor time per thread.
inline double now(bool processor_time, int threads) {
  if (!processor_time) {
    const auto wall = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(wall).count();
  }
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec)) / threads;
}

/// One warm-up of each, then `rounds` rounds over all.
inline void alternate(std::vector<Variant>& variants, int rounds, bool processor_time,
                      int threads) {
  for (const Variant& v : variants) v.run();
  for (int round = 0; round < rounds; ++round) {
    for (Variant& v : variants) {
      const double start = now(processor_time, threads);
      v.run();
      v.seconds.push_back(now(processor_time, threads) - start);
    }
  }
}

/// Runs body(thread) on n threads and joins them.
inline void on_threads(int n, const std::function<void(int)>& body) {
  std::vector<std::jthread> others;
  for (int i = 1; i < n; ++i) others.emplace_back([&body, i] { body(i); });
  body(0);
}

/// One line for each variant: amount per second, its range, and the share of the peak, of which one
/// unit of the amount takes `peak_time` seconds.
inline void report(const std::vector<Variant>& variants, double amount, double peak_time,
                   const char* unit) {
  for (const Variant& v : variants) {
    std::printf("  %-26s %7.1f %s  (%5.1f .. %5.1f)  %5.1f %% of peak\n", v.name.c_str(),
                amount / v.median() * 1e-9, unit, amount / v.worst() * 1e-9,
                amount / v.best() * 1e-9, 100.0 * amount * peak_time / v.median());
  }
}

}  // namespace volvelle::bench
