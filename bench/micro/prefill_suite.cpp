// Prefill of 512 queries after a prefix: GFLOP/s of exactly the visible pairs beside the FMA peak
// of the same run.
#include <cstdio>

#include "harness.hpp"
#include "ladders.hpp"
#include "peaks.hpp"
#include "problem.hpp"
#include "settings.hpp"

namespace volvelle::bench {
namespace {

void bench_prefill(const AttentionShape& shape, std::int64_t prefix, const Settings& settings) {
  constexpr std::int64_t kTokens = 512;
  const Rows data(shape, prefix + kTokens, 1);
  Problem p(shape, prefix, kTokens, data);
  AttendWorkspace workspace =
      AttendWorkspace::create(settings.threads, shape.n_heads, shape.head_dim_k, shape.head_dim_v)
          .value();
  double peak_flops = 0.0;
  std::vector<Variant> variants = {
      {"multiply-add peak",
       [&] {
         on_threads(settings.threads, [&](int i) {
           double mine = 0.0;
           volatile float sink = multiply_add(2'000'000, &mine);
           (void)sink;
           if (i == 0) peak_flops = mine * settings.threads;
         });
       }},
      {"p1 untiled",
       [&] {
         on_threads(settings.threads,
                    [&](int i) { prefill_untiled(p.task(), i, settings.threads); });
       }},
      {"p2 tiled, attend()", [&] { attend(p.task(), workspace, settings.threads); }}};
  for (std::size_t i = 1; i < variants.size(); ++i)
    p.check(variants[i].name.c_str(), variants[i].run);
  alternate(variants, settings.rounds, settings.processor_time, settings.threads);
  std::printf("prefill %s, %lld queries after %lld rows\n", name_of(shape).c_str(),
              static_cast<long long>(kTokens), static_cast<long long>(prefix));
  const double peak_time = variants[0].median() / peak_flops;
  report({variants[0]}, peak_flops, peak_time, "GFLOP/s");
  report({variants.begin() + 1, variants.end()}, p.flops(), peak_time, "GFLOP/s");
}

}  // namespace

void prefill_suite(const Settings& settings) {
  for (const std::int64_t prefix : {0, 2048, 8192})
    bench_prefill(shape_of(3, 3, 64), prefix, settings);
  for (const std::int64_t prefix : {0, 2048}) bench_prefill(shape_of(3, 4, 128), prefix, settings);
  bench_prefill(shape_of(1, 4, 256), 2048, settings);
  bench_prefill(shape_of(3, 3, 64, ElementType::kQ8_0), 2048, settings);
}

}  // namespace volvelle::bench
