// Running tokens through a model whose memory is ours.
//
// A Session is the machinery (an engine context as large as one ubatch, the graph hook, scratch); a
// ContextMemory is the state. One session can serve many memories in turn. step() is the F of the
// fold: memory' = F(memory, tokens).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "volvelle/base/cancel.hpp"
#include "volvelle/memory/context_memory.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {

enum class Logits { kNone, kLast, kAll };

/// q, k or v of one layer and ubatch, after RoPE: f32, element (token, head, i) at data[token *
/// token_stride + head * head_stride + i].
struct CapturedRows {
  enum class Kind { kQuery, kKey, kValue } kind = Kind::kQuery;
  LayerIndex layer;
  Position first_position;
  std::int64_t n_tokens = 0;
  std::int64_t n_heads = 0;
  std::int64_t head_dim = 0;
  const float* data = nullptr;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
};
/// Called on an engine thread while the graph runs; must not throw.
using CaptureSink = std::function<void(const CapturedRows&)>;

/// Keys or values of one layer and ubatch before they are stored; as CapturedRows, to be changed.
struct EditableRows {
  CapturedRows::Kind kind = CapturedRows::Kind::kKey;
  LayerIndex layer;
  Position first_position;
  std::int64_t n_tokens = 0;
  std::int64_t n_heads = 0;
  std::int64_t head_dim = 0;
  float* data = nullptr;  // (token, head, i) at [token * token_stride + head * head_dim + i]
  std::ptrdiff_t token_stride = 0;
};
/// Called on an engine thread while the graph runs; must not throw.
using RowEditor = std::function<void(const EditableRows&)>;

/// Called on an engine thread after a layer's attention of a ubatch, for each memory of the ubatch,
/// with the rows that the layer reads and the queries; must not throw. Other threads wait
/// meanwhile.
using AttentionObserver = std::function<void(LayerIndex layer, const AttendTask& task)>;

struct SessionOptions {
  int n_threads = 0;           // decode; 0: all hardware threads
  int n_threads_batch = 0;     // prefill; 0: as n_threads
  int n_ubatch = 512;          // tokens per graph; also the size of the engine's own cache
  int max_sequences = 1;       // memories that one call of step() can advance together
  bool deterministic = false;  // bit-equal for any ubatch size and thread count of our attention
  /// Checks every read of a single token through an index against exact attention; slow. The
  /// findings are part of take_read_statistics().
  bool audit_reads = false;
  KvTypes kv;
  CancelToken cancel;
  CaptureSink capture;
  /// Changes what is stored, for studies of damaged memories; keys after RoPE. Slow.
  RowEditor edit_rows;
};

/// Tokens for one memory, as part of a batch.
struct SequenceStep {
  ContextMemory* memory = nullptr;
  std::span<const TokenId> tokens;
  Logits want = Logits::kLast;
};

/// At most this many memories in one call of step().
inline constexpr int kMaxSequences = kMaxTasks;

/// Scratch for attention over any layer of a model, as sessions make it.
Result<AttendWorkspace> make_workspace(const ModelInfo& model, int max_threads);

/// Thread-compatible; two sessions on two threads may share a Model.
class Session {
 public:
  /// The model must outlive the session and not be moved meanwhile.
  static Result<Session> create(const Model& model, const SessionOptions& options);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// An empty memory for this session's model and storage types.
  Result<ContextMemory> begin(const MemorySpec& spec) const;
  const Model& model() const noexcept;
  /// The layout that a restored memory must have to be stepped here.
  const StoreLayout& layout() const noexcept;

  /// Appends `tokens` (any number) to the memory. On an error or cancel the memory is as before the
  /// failing ubatch and usable. Refuses to go beyond the model's context length.
  Status step(ContextMemory& memory, std::span<const TokenId> tokens, Logits want);
  /// The same for several memories at once, each mentioned once: ubatches are filled with their
  /// tokens in the given order, so decoding many memories costs one reading of the weights. On an
  /// error each memory is as before the failing ubatch.
  Status step(std::span<const SequenceStep> steps);
  /// Rows of the last step: kAll: token i's logits; kLast: only i = 0. [n_vocab], valid until the
  /// next step.
  std::span<const float> logits(std::int64_t i = 0) const { return sequence_logits(0, i); }
  /// The same for step `s` of a batch.
  std::span<const float> sequence_logits(std::size_t s, std::int64_t i = 0) const;

  /// Makes the index of a memory whose spec has one, if it should be made by now; else the first
  /// decoded token does. For reading a text once and asking later.
  Status prepare_index(ContextMemory& memory, IndexDiagnostics* diagnostics = nullptr) const;
  /// What decoding memories with an index has read and what is known about its error, since the
  /// last call.
  ReadStatistics take_read_statistics() noexcept;

  /// Sets or removes (nullptr) the observer of later steps.
  void set_observer(AttentionObserver observer);

  /// Seconds that thread 0 spent in our attention, since the last call.
  double take_attention_seconds() noexcept;
  /// Cells of the engine's own cache (one ubatch).
  std::int64_t engine_context_tokens() const noexcept;

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace volvelle
