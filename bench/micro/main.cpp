// Attention kernels beside the machine's peaks.
//
//   volvelle_bench_attention SUITE... [--threads N] [--rounds N] [--megabytes N] [--max-context N]
//                            [--cpu]
//   suites: decode prefill types contexts batch threads topk (see settings.hpp)
//
// Variants alternate in one process and medians are printed: quote ratios, not times. --cpu counts
// processor time, for machines that do other work too.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "settings.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle::bench {
namespace {

using Suite = void (*)(const Settings&);
constexpr std::pair<const char*, Suite> kSuites[] = {
    {"decode", decode_suite},     {"prefill", prefill_suite}, {"types", types_suite},
    {"contexts", contexts_suite}, {"batch", batch_suite},     {"threads", threads_suite},
    {"topk", topk_suite}};

struct Request {
  Settings settings;
  std::vector<Suite> suites;
};

/// False if an argument is unknown or not a positive number.
bool parse(const std::vector<std::string>& arguments, Request& request) {
  long long megabytes = 192;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    bool known = false;
    for (const auto& [suite_name, suite] : kSuites) {
      if (name != suite_name) continue;
      request.suites.push_back(suite);
      known = true;
    }
    if (known) continue;
    if (name == "--cpu") {
      request.settings.processor_time = true;
      continue;
    }
    if (i + 1 == arguments.size()) return false;
    const long long value = std::atoll(arguments[++i].c_str());
    if (value < 1) return false;
    if (name == "--threads")
      request.settings.threads = static_cast<int>(value);
    else if (name == "--rounds")
      request.settings.rounds = static_cast<int>(value);
    else if (name == "--megabytes")
      megabytes = value;
    else if (name == "--max-context")
      request.settings.max_context = value;
    else
      return false;
  }
  request.settings.bytes = static_cast<std::size_t>(megabytes) << 20;
  return !request.suites.empty();
}

int run(int argc, char** argv) {
  Request request;
  if (!parse({argv + 1, argv + argc}, request)) {
    std::fprintf(
        stderr,
        "usage: volvelle_bench_attention decode|prefill|types|contexts|batch|threads|topk ... "
        "[--threads N] [--rounds N] [--megabytes N] [--max-context N] [--cpu]\n");
    return 2;
  }
  if (const Status status = select_isa(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    return 1;
  }
  std::printf("instruction set %s, %d threads, medians of %d alternating rounds%s\n",
              isa_name().c_str(), request.settings.threads, request.settings.rounds,
              request.settings.processor_time ? ", processor time" : "");
  for (const Suite suite : request.suites) suite(request.settings);
  return 0;
}

}  // namespace
}  // namespace volvelle::bench

int main(int argc, char** argv) { return volvelle::bench::run(argc, argv); }
