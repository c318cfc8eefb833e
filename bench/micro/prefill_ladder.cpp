// Prefill without tiles: each token walks all its rows with the decode kernel. Keys are re-read
// from cache per token.
#include <cmath>
#include <limits>
#include <vector>

#include "attention/output.hpp"
#include "attention/rows.hpp"
#include "ladders.hpp"

namespace volvelle::bench {

void prefill_untiled(const AttendTask& task, int ith, int nth) {
  const AttentionShape& s = task.shape;
  const int group = s.group();
  const std::int64_t q_stride = pad_lanes(s.head_dim_k);
  const std::int64_t o_stride = pad_lanes(s.head_dim_v);
  const float scale = score_scale(s).query;
  std::vector<float> memory(static_cast<std::size_t>(group * (q_stride + o_stride + 2) + 64));
  float* q = memory.data() +
             (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / sizeof(float);
  float* o = q + group * q_stride;
  float* m = o + group * o_stride;
  float* d = m + group;
  for (std::int64_t item = ith; item < task.n_tokens() * s.n_kv_heads; item += nth) {
    const std::int64_t token = item / s.n_kv_heads;
    const int head = static_cast<int>(item % s.n_kv_heads);
    for (int g = 0; g < group; ++g) {
      const float* source =
          task.q + token * task.q_token_stride + (head * group + g) * task.q_head_stride;
      for (int i = 0; i < s.head_dim_k; ++i) q[g * q_stride + i] = source[i] * scale;
    }
    std::fill_n(m, group, -std::numeric_limits<float>::infinity());
    std::fill_n(d, group, 0.0f);
    std::fill_n(o, group * o_stride, 0.0f);
    const std::int64_t end = task.visible[static_cast<std::size_t>(token)].end;
    for (std::int64_t begin = 0; begin < end; begin += kDecodeBlock) {
      KeyValueRun runs[kDecodeBlock];
      DecodeBlock block;
      block.n_runs = static_cast<int>(
          append_runs(task, head, {begin, std::min(end, begin + kDecodeBlock)}, begin, runs, 0));
      block.runs = runs;
      block.k_type = s.k_type;
      block.v_type = s.v_type;
      block.head_dim_k = s.head_dim_k;
      block.head_dim_v = s.head_dim_v;
      block.n_queries = group;
      block.q = q;
      block.q_stride = q_stride;
      block.m = m;
      block.d = d;
      block.o = o;
      block.o_stride = o_stride;
      attend_decode_block(block);
    }
    for (int g = 0; g < group; ++g)
      write_output(task, token, head * group + g, {o + g * o_stride, m[g], d[g]});
  }
}

}  // namespace volvelle::bench
