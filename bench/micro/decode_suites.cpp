// Decode: GB/s of K and V beside the read bandwidth of the same run.
//
// Many layers are walked, `bytes` of K and V in all, so that caches do not serve them; the same
// kernel over rows that stay in L2 shows what arithmetic alone would allow.
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <limits>

#include "attention/rows.hpp"
#include "harness.hpp"
#include "ladders.hpp"
#include "peaks.hpp"
#include "problem.hpp"
#include "settings.hpp"

namespace volvelle::bench {
namespace {

AttendWorkspace workspace_for(const AttentionShape& s, int threads) {
  return AttendWorkspace::create(threads, s.n_heads, s.head_dim_k, s.head_dim_v).value();
}

/// Reads all bytes, split over the threads.
void read_rows(const Rows& data, int threads) {
  on_threads(threads, [&](int i) {
    const std::size_t part = data.bytes() / static_cast<std::size_t>(threads);
    volatile float sink = read_all(data.data() + static_cast<std::size_t>(i) * part, part);
    (void)sink;
  });
}

/// attend() of the problem over each layer, as an engine would call it.
void attend_layers(const Problem& p, const Rows& data, AttendWorkspace& workspace, int threads) {
  std::vector<KeyValueSegment> segments;
  for (int layer = 0; layer < data.layers(); ++layer) segments.push_back(data.segment(layer));
  std::barrier barrier(threads);
  on_threads(threads, [&](int i) {
    for (const KeyValueSegment& segment : segments) {
      AttendTask task = p.task();
      task.segments = {&segment, 1};
      attend(task, workspace, i, threads);
      barrier.arrive_and_wait();
    }
  });
}

/// One pass over all rows of a layer by a bare block kernel, for all queries of the problem: blocks
/// of all heads split over the threads. With one thread it also writes the outputs.
void decode_layer(Problem& p, const KeyValueSegment& segment, const DecodeRung& rung, int ith,
                  int nth) {
  const AttentionShape& s = p.shape();
  const std::int64_t queries = p.task().n_tokens() * s.group();
  constexpr std::int64_t kMost = 16 * 8;
  alignas(64) thread_local float q[kMost * kMaxHeadDim];
  alignas(64) thread_local float o[kMost * kMaxHeadDim];
  float m[kMost];
  float d[kMost];
  const std::int64_t blocks = (segment.n_rows + kDecodeBlock - 1) / kDecodeBlock;
  const std::int64_t total = blocks * s.n_kv_heads;
  const auto query_at = [&](std::int64_t head, std::int64_t i) {
    return std::pair(i / s.group(), head * s.group() + i % s.group());  // token, query head
  };
  const auto open = [&](std::int64_t head) {
    for (std::int64_t i = 0; i < queries; ++i) {
      const auto [token, query_head] = query_at(head, i);
      const float* source =
          p.q().data() + token * p.task().q_token_stride + query_head * s.head_dim_k;
      for (int x = 0; x < s.head_dim_k; ++x)
        q[i * s.head_dim_k + x] = source[x] * score_scale(s).query;
    }
    std::fill_n(m, queries, -std::numeric_limits<float>::infinity());
    std::fill_n(d, queries, 0.0f);
    std::fill_n(o, queries * s.head_dim_v, 0.0f);
  };
  const auto close = [&](std::int64_t head) {
    for (std::int64_t i = 0; i < queries; ++i) {
      const auto [token, query_head] = query_at(head, i);
      float* out = p.out().data() + token * p.task().out_token_stride + query_head * s.head_dim_v;
      for (int x = 0; x < s.head_dim_v; ++x) out[x] = o[i * s.head_dim_v + x] / d[i];
    }
  };
  std::int64_t at = -1;
  for (std::int64_t unit = total * ith / nth; unit < total * (ith + 1) / nth; ++unit) {
    const std::int64_t head = unit / blocks;
    if (head != at) {
      if (at >= 0 && nth == 1) close(at);
      open(head);
      at = head;
    }
    const std::int64_t row = unit % blocks * kDecodeBlock;
    const auto h = static_cast<std::size_t>(head);
    const auto r = static_cast<std::size_t>(row);
    KeyValueRun run;
    run.k = segment.k + h * segment.k_head_stride + r * row_bytes(s.k_type, s.head_dim_k);
    run.v = segment.v + h * segment.v_head_stride + r * row_bytes(s.v_type, s.head_dim_v);
    run.n = std::min(kDecodeBlock, segment.n_rows - row);
    rung.block({&run, 1, s.k_type, s.v_type, s.head_dim_k, s.head_dim_v, 0.0f,
                static_cast<int>(queries), q, s.head_dim_k, m, d, o, s.head_dim_v});
  }
  if (nth == 1) close(at);
}

void run_rung(Problem& p, const Rows& data, const DecodeRung& rung, int threads) {
  on_threads(threads, [&](int i) {
    for (int layer = 0; layer < data.layers(); ++layer)
      decode_layer(p, data.segment(layer), rung, i, threads);
  });
}

int layers_for(const AttentionShape& shape, std::int64_t rows, std::size_t bytes) {
  return static_cast<int>(std::max<std::size_t>(1, bytes / Rows::layer_bytes(shape, rows)));
}

/// Speed of attend() over rows that stay in the L2 of each core, in bytes per second.
double l2_speed(const AttentionShape& full, const Settings& settings) {
  AttentionShape shape = full;
  shape.n_kv_heads = settings.threads;  // one head for each thread: it keeps what it read
  shape.n_heads = shape.n_kv_heads * full.group();
  const std::int64_t row = static_cast<std::int64_t>(Rows::layer_bytes(full, 1)) / full.n_kv_heads;
  const std::int64_t rows =
      std::max<std::int64_t>(512, (640 << 10) / row / kDecodeBlock * kDecodeBlock);
  const Rows data(shape, rows, 1);
  const Problem p(shape, rows - 1, 1, data);
  AttendWorkspace workspace = workspace_for(shape, settings.threads);
  constexpr int kTimes = 200;
  std::vector<Variant> variants = {{"L2", [&] {
                                      on_threads(settings.threads, [&](int i) {
                                        for (int n = 0; n < kTimes; ++n)
                                          attend(p.task(), workspace, i, settings.threads);
                                      });
                                    }}};
  // Threads may run ahead of each other here: each has whole heads, so nothing is merged.
  alternate(variants, settings.rounds, settings.processor_time, settings.threads);
  return static_cast<double>(data.bytes()) * kTimes / variants[0].median();
}

void bench_decode(const AttentionShape& shape, std::int64_t rows, const Settings& settings) {
  const Rows data(shape, rows, layers_for(shape, rows, settings.bytes));
  Problem p(shape, rows - 1, 1, data);
  AttendWorkspace workspace = workspace_for(shape, settings.threads);
  std::vector<Variant> variants = {{"read all bytes", [&] { read_rows(data, settings.threads); }}};
  for (const DecodeRung& rung : decode_rungs()) {
    if (rung.f16_only && shape.k_type != ElementType::kF16) continue;
    p.check(rung.name, [&] { decode_layer(p, p.segment(), rung, 0, 1); });
    variants.push_back({rung.name, [&, rung] { run_rung(p, data, rung, settings.threads); }});
  }
  p.check("attend()", [&] { attend(p.task(), workspace, settings.threads); });
  variants.push_back({"attend()", [&] { attend_layers(p, data, workspace, settings.threads); }});
  alternate(variants, settings.rounds, settings.processor_time, settings.threads);
  std::printf("decode %s, %lld rows x %d layers; attend() in L2: %.1f GB/s\n",
              name_of(shape).c_str(), static_cast<long long>(rows), data.layers(),
              l2_speed(shape, settings) * 1e-9);
  const double bytes = static_cast<double>(data.bytes());
  report(variants, bytes, variants[0].median() / bytes, "GB/s");
}

}  // namespace

void decode_suite(const Settings& settings) {
  for (const std::int64_t rows : {8192, 65536}) bench_decode(shape_of(3, 3, 64), rows, settings);
  bench_decode(shape_of(3, 4, 128), 8192, settings);
  bench_decode(shape_of(1, 4, 256), 8192, settings);
}

void types_suite(const Settings& settings) {
  for (const ElementType type : kElementTypes) {
    bench_decode(shape_of(3, 3, 64, type), 8192, settings);
    bench_decode(shape_of(8, 4, 128, type), 8192, settings);
  }
}

void contexts_suite(const Settings& settings) {
  for (std::int64_t rows = 4096; rows <= settings.max_context; rows *= 2) {
    for (const ElementType type : kElementTypes) {
      const bool at_every_length = type == ElementType::kF16 || type == ElementType::kQ8_0;
      if (type == ElementType::kF32 || (!at_every_length && rows != 32'768)) continue;
      const AttentionShape shape = shape_of(8, 4, 128, type);
      const Rows data(shape, rows, layers_for(shape, rows, settings.bytes));
      Problem p(shape, rows - 1, 1, data);
      AttendWorkspace workspace = workspace_for(shape, settings.threads);
      p.check("attend()", [&] { attend(p.task(), workspace, settings.threads); });
      std::vector<Variant> variants = {
          {"read", [&] { read_rows(data, settings.threads); }},
          {"attend()", [&] { attend_layers(p, data, workspace, settings.threads); }}};
      alternate(variants, settings.rounds, settings.processor_time, settings.threads);
      const double bytes = static_cast<double>(data.bytes());
      std::printf("%7lld rows %-4s  %8.3f ms a layer  %6.1f GB/s  %5.1f %% of reading\n",
                  static_cast<long long>(rows), to_string(type).data(),
                  variants[1].median() / data.layers() * 1e3, bytes / variants[1].median() * 1e-9,
                  100.0 * variants[0].median() / variants[1].median());
    }
  }
}

void batch_suite(const Settings& settings) {
  std::printf("time of the tiled path over that of the decode kernel, by tokens\n%-28s", "");
  const std::int64_t counts[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16};
  for (const std::int64_t tokens : counts) std::printf(" %5lld", static_cast<long long>(tokens));
  std::printf("\n");
  for (const int dim : {64, 128}) {
    for (const int group : {1, 3, 4, 8}) {
      for (const std::int64_t rows : {1024, 8192}) {
        const AttentionShape shape = shape_of(3, group, dim);
        const Rows data(shape, rows, layers_for(shape, rows, settings.bytes / 4));
        AttendWorkspace workspace = workspace_for(shape, settings.threads);
        std::printf("D=%-3d G=%d %5lld rows         ", dim, group, static_cast<long long>(rows));
        for (const std::int64_t tokens : counts) {
          Problem p(shape, rows - tokens, tokens, data);
          std::vector<Variant> variants = {
              {"tiled",
               [&] {
                 AttendTask task = p.task();
                 task.deterministic = true;
                 std::vector<KeyValueSegment> segments;
                 for (int layer = 0; layer < data.layers(); ++layer) {
                   const KeyValueSegment segment = data.segment(layer);
                   task.segments = {&segment, 1};
                   attend(task, workspace, settings.threads);
                 }
               }},
              {"decode", [&] { run_rung(p, data, decode_rungs().back(), settings.threads); }}};
          alternate(variants, settings.rounds, settings.processor_time, settings.threads);
          std::printf(" %5.2f", variants[0].median() / variants[1].median());
          std::fflush(stdout);
        }
        std::printf("\n");
      }
    }
  }
}

void threads_suite(const Settings& settings) {
  for (const AttentionShape& shape : {shape_of(3, 3, 64), shape_of(8, 4, 128)}) {
    const Rows data(shape, 8192, layers_for(shape, 8192, settings.bytes));
    const Problem one(shape, 8191, 1, data);
    const Problem many(shape, 8192 - 512, 512, data);
    AttendWorkspace workspace = workspace_for(shape, 2);
    std::vector<Variant> variants = {{"read 1", [&] { read_rows(data, 1); }},
                                     {"read 2", [&] { read_rows(data, 2); }},
                                     {"decode 1", [&] { attend_layers(one, data, workspace, 1); }},
                                     {"decode 2", [&] { attend_layers(one, data, workspace, 2); }},
                                     {"prefill 1", [&] { attend(many.task(), workspace, 1); }},
                                     {"prefill 2", [&] { attend(many.task(), workspace, 2); }}};
    alternate(variants, settings.rounds, false, 1);
    std::printf("%s, 8192 rows, 1 -> 2 threads: reading x %.2f, decode x %.2f, prefill x %.2f\n",
                name_of(shape).c_str(), variants[0].median() / variants[1].median(),
                variants[2].median() / variants[3].median(),
                variants[4].median() / variants[5].median());
  }
}

}  // namespace volvelle::bench
