// The graph hook: llama.cpp computes, we remember.
//
// While a graph is scheduled, the engine asks a callback about every node before anything runs.
// There we turn the nodes that write the KV cache (SET_ROWS into cache_k_l<N>, cache_v_l<N>) and
// the attention nodes (FLASH_ATTN_EXT) into custom ops that write and read a ContextMemory. Sources
// stay as they are, so keys arrive rotated and queries arrive as the model made them. The engine's
// own cache is never filled.
//
// Invariant, checked after every ubatch: each layer that has rows wrote its keys once, its values
// once, and was read as often as the model's layers read it (more than once where layers share a KV
// cache). A model whose graph does anything else is refused, not approximated. Engine graphs are
// reused between steps; a rewritten node stays rewritten. Thread rule: one ubatch at a time; the
// ops run in the engine's threads.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/engine.hpp"
#include "volvelle/attention/attend.hpp"
#include "volvelle/index/topk_read.hpp"
#include "volvelle/memory/context_memory.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// Consecutive tokens of a ubatch that go to one memory.
struct UbatchPart {
  ContextMemory* memory = nullptr;
  std::span<const TokenId> tokens;
  Logits want = Logits::kNone;
};

class GraphHook {
 public:
  struct Options {
    StoreLayout layout;
    std::vector<int> readers;  // [n_layers]: attention nodes that read each layer's rows
    bool deterministic = false;
    bool audit_reads = false;
    CaptureSink capture;
    RowEditor edit_rows;
    CancelToken cancel;
  };
  GraphHook(Options options, AttendWorkspace workspace);
  GraphHook(const GraphHook&) = delete;
  GraphHook& operator=(const GraphHook&) = delete;

  void set_observer(AttentionObserver observer) { observer_ = std::move(observer); }
  /// The memories that the next graph writes and reads, in the order of its tokens (at most
  /// kMaxTasks); each has a pending append of its part. `parts` must live until finish_ubatch().
  void begin_ubatch(std::span<const UbatchPart> parts) noexcept;
  /// The first problem of the ubatch that just ran, or ok. `completed`: the engine computed the
  /// whole graph.
  Status finish_ubatch(bool completed);

  /// Scratch for reads through an index; without it all reads are exact.
  bool has_topk_workspace() const noexcept { return topk_.has_value(); }
  void set_topk_workspace(TopkWorkspace workspace) { topk_ = std::move(workspace); }
  Status reserve_tiles(std::int64_t n_tiles) { return topk_->reserve(n_tiles); }
  /// What decoding memories with an index has read, since the last call.
  ReadStatistics take_read_statistics() noexcept;

  double take_attention_seconds() noexcept { return std::exchange(attention_seconds_, 0.0); }

  static bool on_node(ggml_tensor* node, bool ask, void* self);  // ggml_backend_sched_eval_callback
  static bool should_abort(void* self);                          // ggml_abort_callback

 private:
  enum class Problem { kNone, kShape, kType, kDevice, kBias, kLayer, kMask, kOrder };
  /// An attention node that reads a layer's rows.
  struct Reader {
    GraphHook* hook = nullptr;
    std::size_t layer = 0;
    AttentionShape shape;
  };
  /// A layer that has rows. Addresses are stable: they are the ops' userdata.
  struct LayerOps {
    GraphHook* hook = nullptr;
    LayerIndex layer;
    std::vector<std::unique_ptr<Reader>> readers;
    std::size_t n_readers_seen = 0;  // in the graph that is being visited
    std::atomic<int> keys_written{0};
    std::atomic<int> values_written{0};
    std::atomic<int> attended{0};
  };

  static const char* reason(Problem problem) noexcept;
  void visit(ggml_tensor* node);
  void rewrite_store(ggml_tensor* node);
  void rewrite_attention(ggml_tensor* node);
  Problem check_attention(const ggml_tensor* node, std::int64_t layer) const;
  void fail(Problem problem, const char* node_name) noexcept;
  void check_mask(const ggml_tensor* mask, std::int64_t window) noexcept;
  void capture(CapturedRows::Kind kind, LayerIndex layer, const ggml_tensor* rows,
               std::int64_t n_heads) noexcept;
  void edit(CapturedRows::Kind kind, LayerIndex layer, const ggml_tensor* rows) noexcept;
  void check_before_attention(const ggml_tensor* node, const Reader& reader) noexcept;

  const LayerShape& layer_shape(LayerIndex layer) const noexcept {
    return options_.layout.layers[static_cast<std::size_t>(layer.value())];
  }

  AttendTask task_of(const ggml_tensor* dst, const Reader& reader, const UbatchPart& part,
                     std::ptrdiff_t first_token) const noexcept;
  bool reads_index(const AttendTask& task, const UbatchPart& part, LayerIndex layer) const noexcept;
  void count_exact(const AttendTask& task) noexcept;
  static void write_rows(CapturedRows::Kind kind, ggml_tensor* dst, int ith, int nth,
                         LayerOps& ops) noexcept;
  static void write_keys(ggml_tensor* dst, int ith, int nth, void* ops) noexcept;
  static void write_values(ggml_tensor* dst, int ith, int nth, void* ops) noexcept;
  static void attend_layer(ggml_tensor* dst, int ith, int nth, void* ops) noexcept;

  Options options_;
  AttendWorkspace workspace_;
  std::optional<TopkWorkspace> topk_;
  ReadStatistics exact_reads_;  // of memories with an index, where it was not used
  std::vector<std::unique_ptr<LayerOps>> layers_;  // stable addresses: they are the ops' userdata
  AttentionObserver observer_;
  std::span<const UbatchPart> parts_;
  std::int64_t n_tokens_ = 0;
  bool mask_checked_ = false;
  std::pair<const ggml_tensor*, std::int64_t> last_mask_{};  // and the window it was checked for
  double attention_seconds_ = 0;
  std::atomic<Problem> problem_{Problem::kNone};
  char problem_node_[GGML_MAX_NAME] = {};  // no string: it is set on engine threads
};

}  // namespace volvelle
