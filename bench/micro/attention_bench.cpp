// Attention kernels beside the machine's peaks: decode in GB/s of K and V, prefill in GFLOP/s.
//
//   volvelle_bench_attention [threads] [rounds] [megabytes] [cpu]
//
// Decode walks many layers (`megabytes` of K and V in all) so that caches do not serve it, prefill
// one layer of 512 queries after a prefix. Every rung is compared with float64 before it is timed;
// a rung that is wrong stops the program.
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "harness.hpp"
#include "kernels/convert.hpp"
#include "ladders.hpp"
#include "peaks.hpp"
#include "volvelle/attention/reference.hpp"
#include "volvelle/kernels/isa.hpp"

namespace volvelle::bench {
namespace {

struct Settings {
  int threads = 2;
  int rounds = 7;
  std::size_t bytes = std::size_t{192} << 20;
  bool processor_time = false;  // see harness.hpp
};

/// Layers of random f16 rows, [layer][k, v][kv head][row][dim], 64-byte aligned.
class Rows {
 public:
  Rows(const AttentionShape& shape, std::int64_t rows, int layers)
      : shape_(shape), rows_(rows), layers_(layers) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(2 << 20, (bytes() + (2 << 20)) >> 21 << 21));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> pattern(1 << 16);
    for (float& x : pattern) x = normal(random);
    for (std::size_t at = 0; at < bytes();) {
      const std::size_t n = std::min<std::size_t>(pattern.size(), (bytes() - at) / 2);
      convert_row(pattern.data(), data_ + at, ElementType::kF16, static_cast<std::int64_t>(n));
      at += 2 * n;
    }
  }
  ~Rows() { std::free(data_); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  std::size_t layer_bytes() const {
    return static_cast<std::size_t>(rows_ * shape_.n_kv_heads) *
           (row_bytes(shape_.k_type, shape_.head_dim_k) +
            row_bytes(shape_.v_type, shape_.head_dim_v));
  }
  std::size_t bytes() const { return layer_bytes() * static_cast<std::size_t>(layers_); }
  const std::byte* data() const { return data_; }
  int layers() const { return layers_; }

  KeyValueSegment segment(int layer) const {
    KeyValueSegment s;
    s.n_rows = rows_;
    s.k_head_stride = static_cast<std::size_t>(rows_) * row_bytes(shape_.k_type, shape_.head_dim_k);
    s.v_head_stride = static_cast<std::size_t>(rows_) * row_bytes(shape_.v_type, shape_.head_dim_v);
    s.k = data_ + static_cast<std::size_t>(layer) * layer_bytes();
    s.v = s.k + static_cast<std::size_t>(shape_.n_kv_heads) * s.k_head_stride;
    return s;
  }

 private:
  AttentionShape shape_;
  std::int64_t rows_;
  int layers_;
  std::byte* data_ = nullptr;
};

AttentionShape shape_of(int kv_heads, int group, int dim) {
  AttentionShape s;
  s.n_kv_heads = kv_heads;
  s.n_heads = kv_heads * group;
  s.head_dim_k = s.head_dim_v = dim;
  s.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  return s;
}

/// Queries, outputs and the task of one layer.
struct Problem {
  AttentionShape shape;
  std::vector<VisibleRows> visible;
  std::vector<float> q;
  std::vector<float> out;
  KeyValueSegment segment;
  AttendTask task;

  Problem(const AttentionShape& s, std::int64_t prefix, std::int64_t tokens, const Rows& rows)
      : shape(s) {
    for (std::int64_t t = prefix; t < prefix + tokens; ++t) visible.push_back({0, 0, t + 1});
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(tokens * s.n_heads * s.head_dim_k));
    for (float& x : q) x = normal(random);
    out.assign(static_cast<std::size_t>(tokens * s.n_heads * s.head_dim_v), 0.0f);
    segment = rows.segment(0);
    task.shape = s;
    task.visible = visible;
    task.segments = {&segment, 1};
    task.q = q.data();
    task.q_head_stride = s.head_dim_k;
    task.q_token_stride = static_cast<std::ptrdiff_t>(s.n_heads) * s.head_dim_k;
    task.out = out.data();
    task.out_head_stride = s.head_dim_v;
    task.out_token_stride = static_cast<std::ptrdiff_t>(s.n_heads) * s.head_dim_v;
  }

  /// Stops the program unless the outputs of the first and last token equal float64 to 1e-4.
  void check(const char* name) const {
    double worst = 0.0;
    for (const std::int64_t token : {std::int64_t{0}, task.n_tokens() - 1}) {
      for (int head = 0; head < shape.n_heads; ++head) {
        const std::vector<double> expected = normalized(reference_state(task, token, head));
        const float* got = out.data() + token * task.out_token_stride + head * task.out_head_stride;
        for (std::size_t i = 0; i < expected.size(); ++i)
          worst = std::max(worst, std::abs(got[i] - expected[i]));
      }
    }
    if (worst <= 1e-4) return;
    std::fprintf(stderr, "%s: differs from float64 by %g\n", name, worst);
    std::exit(1);
  }
};

/// One decode step over all rows of a layer by a bare block kernel: heads and halves of the rows
/// split over the threads.
void decode_layer(const Problem& p, const KeyValueSegment& segment, const DecodeRung& rung, int ith,
                  int nth) {
  const AttentionShape& s = p.shape;
  const int group = s.group();
  alignas(64) thread_local float q[16 * kMaxHeadDim];
  alignas(64) thread_local float o[16 * kMaxHeadDim];
  float m[16];
  float d[16];
  const std::int64_t blocks = (segment.n_rows + kDecodeBlock - 1) / kDecodeBlock;
  const std::int64_t total = blocks * s.n_kv_heads;
  std::int64_t open = -1;
  for (std::int64_t unit = total * ith / nth; unit < total * (ith + 1) / nth; ++unit) {
    const std::int64_t head = unit / blocks;
    if (head != open) {
      const float* source = p.q.data() + head * group * s.head_dim_k;
      for (int i = 0; i < group * s.head_dim_k; ++i)
        q[i] = source[i] * s.scale * 1.4426950408889634f;
      std::fill_n(m, group, -std::numeric_limits<float>::infinity());
      std::fill_n(d, group, 0.0f);
      std::fill_n(o, group * s.head_dim_v, 0.0f);
      open = head;
    }
    const std::int64_t row = unit % blocks * kDecodeBlock;
    const auto h = static_cast<std::size_t>(head);
    const auto r = static_cast<std::size_t>(row);
    KeyValueRun run;
    run.k = segment.k + h * segment.k_head_stride + r * row_bytes(s.k_type, s.head_dim_k);
    run.v = segment.v + h * segment.v_head_stride + r * row_bytes(s.v_type, s.head_dim_v);
    run.n = std::min(kDecodeBlock, segment.n_rows - row);
    rung.block({&run, 1, s.k_type, s.v_type, s.head_dim_k, s.head_dim_v, 0.0f, group, q,
                s.head_dim_k, m, d, o, s.head_dim_v});
  }
  if (nth > 1) return;
  for (std::int64_t g = 0; g < group; ++g) {  // the last head's output, for the check
    float* out = const_cast<float*>(p.out.data()) + ((s.n_kv_heads - 1) * group + g) * s.head_dim_v;
    for (int i = 0; i < s.head_dim_v; ++i) out[i] = o[g * s.head_dim_v + i] / d[g];
  }
}

void report(const std::vector<Variant>& variants, double amount, double peak_time_per_amount,
            const char* unit) {
  for (const Variant& v : variants) {
    std::printf("  %-26s %7.1f %s  (%5.1f .. %5.1f)  %5.1f %% of peak\n", v.name.c_str(),
                amount / v.median() * 1e-9, unit, amount / v.worst() * 1e-9,
                amount / v.best() * 1e-9, 100.0 * amount * peak_time_per_amount / v.median());
  }
}

void bench_decode(const AttentionShape& shape, std::int64_t rows, const Settings& settings) {
  const Rows one(shape, rows, 1);
  const int layers = static_cast<int>(std::max<std::size_t>(1, settings.bytes / one.layer_bytes()));
  const Rows data(shape, rows, layers);
  Problem p(shape, rows - 1, 1, data);
  AttendWorkspace workspace =
      AttendWorkspace::create(settings.threads, shape.n_heads, shape.head_dim_k, shape.head_dim_v)
          .value();
  std::vector<Variant> variants;
  variants.push_back({"read all bytes", [&] {
                        on_threads(settings.threads, [&](int i) {
                          const std::size_t part =
                              data.bytes() / static_cast<std::size_t>(settings.threads);
                          volatile float sink =
                              read_all(data.data() + static_cast<std::size_t>(i) * part, part);
                          (void)sink;
                        });
                      }});
  attend(p.task, workspace, 1);
  p.check("attend");
  for (const DecodeRung& rung : decode_rungs()) {
    const std::vector<float> whole = p.out;
    decode_layer(p, p.segment, rung, 0, 1);
    p.check(rung.name);
    variants.push_back({rung.name, [&p, &data, &settings, rung] {
                          on_threads(settings.threads, [&](int i) {
                            for (int layer = 0; layer < data.layers(); ++layer)
                              decode_layer(p, data.segment(layer), rung, i, settings.threads);
                          });
                        }});
  }
  variants.push_back({"attend()", [&] {
                        std::vector<AttendTask> tasks(static_cast<std::size_t>(data.layers()),
                                                      p.task);
                        std::vector<KeyValueSegment> segments;
                        for (int layer = 0; layer < data.layers(); ++layer)
                          segments.push_back(data.segment(layer));
                        for (std::size_t i = 0; i < tasks.size(); ++i)
                          tasks[i].segments = {&segments[i], 1};
                        std::barrier barrier(settings.threads);
                        on_threads(settings.threads, [&](int i) {
                          for (const AttendTask& task : tasks) {
                            attend(task, workspace, i, settings.threads);
                            barrier.arrive_and_wait();
                          }
                        });
                      }});
  alternate(variants, settings.rounds, settings.processor_time, settings.threads);
  std::printf("decode f16 D=%d G=%d, %d KV heads, %lld rows x %d layers\n", shape.head_dim_k,
              shape.group(), shape.n_kv_heads, static_cast<long long>(rows), layers);
  const double bytes = static_cast<double>(data.bytes());
  report(variants, bytes, variants[0].median() / bytes, "GB/s");
}

void bench_prefill(const AttentionShape& shape, std::int64_t prefix, const Settings& settings) {
  constexpr std::int64_t kTokens = 512;
  const Rows data(shape, prefix + kTokens, 1);
  Problem p(shape, prefix, kTokens, data);
  AttendWorkspace workspace =
      AttendWorkspace::create(settings.threads, shape.n_heads, shape.head_dim_k, shape.head_dim_v)
          .value();
  double pairs = 0.0;
  for (const VisibleRows& v : p.visible) pairs += static_cast<double>(v.end);
  const double flops = 2.0 * pairs * shape.n_heads * (shape.head_dim_k + shape.head_dim_v);
  double peak_flops = 0.0;
  const auto peak_steps = static_cast<std::int64_t>(2'000'000);
  std::vector<Variant> variants;
  variants.push_back({"multiply-add peak", [&] {
                        on_threads(settings.threads, [&](int i) {
                          double mine = 0.0;
                          volatile float sink = multiply_add(peak_steps, &mine);
                          (void)sink;
                          if (i == 0) peak_flops = mine * settings.threads;
                        });
                      }});
  variants.push_back({"p1 untiled", [&] {
                        on_threads(settings.threads,
                                   [&](int i) { prefill_untiled(p.task, i, settings.threads); });
                      }});
  variants.push_back({"p2 tiled, attend()", [&] { attend(p.task, workspace, settings.threads); }});
  for (std::size_t i = 1; i < variants.size(); ++i) {
    std::fill(p.out.begin(), p.out.end(), 0.0f);
    variants[i].run();
    p.check(variants[i].name.c_str());
  }
  alternate(variants, settings.rounds, settings.processor_time, settings.threads);
  std::printf("prefill f16 D=%d G=%d, %d KV heads, %lld queries after %lld rows\n",
              shape.head_dim_k, shape.group(), shape.n_kv_heads, static_cast<long long>(kTokens),
              static_cast<long long>(prefix));
  const double peak_time = variants[0].median() / peak_flops;
  std::vector<Variant> peak = {variants[0]};
  report(peak, peak_flops, peak_time, "GFLOP/s");
  report({variants.begin() + 1, variants.end()}, flops, peak_time, "GFLOP/s");
}

int run(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.threads = std::atoi(argv[1]);
  if (argc > 2) settings.rounds = std::atoi(argv[2]);
  if (argc > 3) settings.bytes = static_cast<std::size_t>(std::atoi(argv[3])) << 20;
  settings.processor_time = argc > 4 && std::string(argv[4]) == "cpu";
  if (settings.threads < 1 || settings.rounds < 1) {
    std::fprintf(stderr, "usage: volvelle_bench_attention [threads] [rounds] [megabytes] [cpu]\n");
    return 2;
  }
  if (const Status status = select_isa(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    return 1;
  }
  std::printf("instruction set %s, %d threads, medians of %d alternating rounds\n",
              isa_name().c_str(), settings.threads, settings.rounds);
  for (const std::int64_t rows : {8192, 65536}) bench_decode(shape_of(3, 3, 64), rows, settings);
  bench_decode(shape_of(3, 4, 128), 8192, settings);
  bench_decode(shape_of(1, 4, 256), 8192, settings);
  for (const std::int64_t prefix : {0, 2048, 8192})
    bench_prefill(shape_of(3, 3, 64), prefix, settings);
  bench_prefill(shape_of(3, 4, 128), 2048, settings);
  bench_prefill(shape_of(1, 4, 256), 2048, settings);
  return 0;
}

}  // namespace
}  // namespace volvelle::bench

int main(int argc, char** argv) { return volvelle::bench::run(argc, argv); }
