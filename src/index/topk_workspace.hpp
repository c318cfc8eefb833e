// Inside of TopkWorkspace: the buffers that the threads of one read share, and where they meet.
//
// A read goes through phases with a meeting of all threads after each: queries, scores, choice,
// rows, outputs. Within a phase each thread writes its own places. What depends on the rows alone
// is cut into pieces of tiles whose borders do not depend on the threads, so sums have one order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "attention/state.hpp"
#include "attention/workspace.hpp"
#include "kernels/code_scan.hpp"
#include "volvelle/index/topk_read.hpp"

namespace volvelle {

/// Where threads of a pool wait for each other. Spins for a while, then gives way.
class Meeting {
 public:
  void wait(int nth) noexcept {
    if (nth == 1) return;
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == nth) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spin = 0; generation_.load(std::memory_order_acquire) == generation; ++spin) {
      if (spin < kSpins) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr int kSpins = 2000;
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

inline constexpr std::int64_t kMaxPieces = 32;
inline constexpr std::int64_t kMinPieceTiles = 8;  // a piece has states to clear and to merge
inline constexpr std::int64_t kRunsAtOnce = kDecodeBlock;  // rows per call of the decode kernel
inline constexpr int kScanPlanes = 2;  // a query is scanned as one or two planes of bytes

/// A query head, prepared.
struct PreparedQuery {
  float base = 0.0f;   // score of the mean key, base 2: coded scores are relative to it
  float sigma = 0.0f;  // standard deviation of a coded score per unit of row scale, natural
  float reach = 0.0f;  // largest error of a dithered score per unit of row scale, natural
  float norm = 0.0f;   // |D^T q| in natural units, rounded up
  float slack = 0.0f;  // bound of the arithmetic error of a coded score per unit of scale, natural
  float shift = 0.0f;  // the same for what all coded scores share, and for exp2 and its sums
};

/// What a piece of tiles contributes to a query head: the weighted sum of coded values in code
/// coordinates. Weights are relative to the head's largest coded score.
struct PieceTail {
  float weights = 0.0f;
  float bytes = 0.0f;  // sum of gain * rounded weights
};

struct TopkWorkspace::Impl {
  int max_heads = 0;
  int max_dim_v = 0;
  std::int64_t capacity_tiles = 0;

  // [head] or [kv head], sized once
  std::ptrdiff_t q_stride = 0;           // floats of a scaled query
  std::ptrdiff_t code_stride = 0;        // bytes of a query plane
  std::ptrdiff_t value_stride = 0;       // floats of a value in code coordinates
  AlignedFloats fixed;                   // see topk_workspace.cpp
  float* scaled = nullptr;               // [head, q_stride]
  std::int8_t* planes = nullptr;         // [head, kScanPlanes, code_stride]
  float* gains = nullptr;                // [head, kScanPlanes, 3]
  float* offsets = nullptr;              // [head, kScanPlanes]
  float* dithers = nullptr;              // [head, code_stride] factors of the dither's numbers
  float* recent = nullptr;               // states of [kv head][group]
  float* piece_states = nullptr;         // states of [piece][kv head][group]
  float* piece_sums = nullptr;           // [piece, head, value_stride]
  std::vector<PreparedQuery> queries;    // [head]
  std::vector<PieceTail> piece_tails;    // [piece, head]
  std::vector<float> top;                // [head]: largest score of any kind, base 2
  std::vector<float> total;              // [head]: all weights relative to it
  std::vector<std::int64_t> n_selected;  // [kv head]
  std::vector<unsigned char> dense;      // [kv head]
  std::vector<double> bounds;            // [kv head], proved; infinity: none

  // sized by reserve()
  AlignedFloats growing;
  float* weights = nullptr;     // [head, capacity_tiles, kCodeTile]
  float* tile_m = nullptr;      // [head, capacity_tiles]: largest score, then the factor to the top
  float* tile_d = nullptr;      // [head, capacity_tiles]
  float* tile_error = nullptr;  // [head, capacity_tiles]
  float* saved = nullptr;       // as weights: of chosen rows, while bounds are made
  float* combined = nullptr;    // [kv head, capacity_tiles, kCodeTile]
  float* scratch = nullptr;     // as combined, for the choice
  float* block_max = nullptr;   // [kv head, capacity_tiles * kCodeTile / kSelectBlock]
  std::int32_t* selected = nullptr;  // [kv head, capacity_tiles * kCodeTile]
  std::size_t growing_floats = 0;
  std::size_t fixed_floats = 0;

  struct Thread {
    float* raw = nullptr;          // [kScanPlanes * max_heads, kCodeTile] scores of a tile
    float* gains = nullptr;        // [max_heads] of a tile's weights
    std::int8_t* bytes = nullptr;  // [max_heads, kCodeTile] weights of a tile
    float* key = nullptr;          // [q_stride] a key
    // of queries turned for a block
    float* turned = nullptr;              // [q_stride]
    float* coordinates = nullptr;         // [code_stride]
    std::int8_t* block_planes = nullptr;  // [max_heads, kScanPlanes, code_stride]
    float* block_gains = nullptr;         // [max_heads, kScanPlanes, 3]
    float* block_offsets = nullptr;       // [max_heads, kScanPlanes]
    float* block_bases = nullptr;         // [max_heads]
    float* value = nullptr;               // [value_stride] coordinates of an output
    std::vector<KeyValueRun> runs;
    std::vector<double> products;  // [code_stride] a query in code coordinates
    ReadStatistics statistics;
  };
  std::vector<Thread> threads;
  Meeting meeting;
  std::atomic<bool> not_finite{false};

  float* weights_of(int head) const noexcept { return weights + head * capacity_tiles * kCodeTile; }
  /// States of the group of one KV head: slot `index` of a set.
  static RowStates group_states(float* set, std::int64_t index,
                                const AttentionShape& shape) noexcept {
    const std::int64_t stride = pad_lanes(shape.head_dim_v);
    return place_states(set + index * states_floats(shape.group(), stride), shape.group(), stride);
  }
};

}  // namespace volvelle
