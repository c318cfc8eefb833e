// The index of a memory: which layers have one, how it is made from the memory itself, and how it
// follows the memory's rows.
//
// A code needs to know what queries look like at the positions that will ask (made of early
// positions it finds little), so queries of the last positions are kept while tokens are read; the
// code is made when the first few tokens are decoded, or when asked for, and again when the memory
// has grown by half since. Before that, and for short memories, reads are exact. Invariant: tile i
// of a layer codes rows [64 i, 64 i + 64), all below the memory's length. Thread rule: as
// ContextMemory; observe() is called by one engine thread per layer and ubatch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "volvelle/base/ids.hpp"
#include "volvelle/index/topk_read.hpp"
#include "volvelle/memory/kv_store.hpp"
#include "volvelle/memory/memory_spec.hpp"

namespace volvelle {

/// Below so many tokens all reads are exact, whatever a spec asks for: a code of fewer rows says
/// little about a head. From how many on an index is faster depends on the machine and the model
/// (`volvelle plan` measures it); a spec says it (`min=N`), so that answers depend on no clock.
inline constexpr std::int64_t kMinIndexedTokens = 1024;

/// What a topk term asks for, in numbers.
struct IndexPlan {
  IndexOptions options;
  TopkPolicy policy;
  std::optional<LayerRange> dense_layers;
  std::int64_t min_tokens = kMinIndexedTokens;
  bool block_anchored = false;  // options.frame is the model's, known when the code is made
};
/// The plan of a supported spec with a topk term.
Result<IndexPlan> index_plan(const MemorySpec& spec);

/// Queries are kept of every second of the last so many positions.
inline constexpr std::int64_t kQueryPositions = 1024;

class MemoryIndex {
 public:
  MemoryIndex(IndexPlan plan, StoreLayout layout);

  const IndexPlan& plan() const noexcept { return plan_; }
  /// Whether a layer is read through the index, once it is made.
  bool serves(LayerIndex layer) const noexcept;
  const CodeIndex& layer(LayerIndex layer) const noexcept {
    return layers_[static_cast<std::size_t>(layer.value())].index;
  }
  bool ready() const noexcept { return made_at_ > 0; }
  std::int64_t made_at() const noexcept { return made_at_; }

  /// Keeps queries of a task whose first token is at `first`.
  void observe(LayerIndex layer, const AttendTask& task, std::int64_t first) noexcept;
  /// Whether the code should be made (again) before decoding at `length`.
  bool wants_making(std::int64_t length) const noexcept;
  /// Makes codes of rows [0, length) and codes them, on `n_threads` threads. `store` holds the rows
  /// of all served layers. On an error the index is as before.
  /// `rope`: the model's, which block-anchored codes need.
  Status make(const KvStore& store, std::int64_t length, int n_threads, const RopeConfig& rope = {},
              IndexDiagnostics* diagnostics = nullptr);
  /// Takes the codes of an index that was made of another text, once and for all: it is not made
  /// again, and the memory may not grow beyond position_limit().
  void adopt_codes(const MemoryIndex& other);
  /// Positions that adopted codes know; 0: codes are the memory's own, any number.
  std::int64_t position_limit() const noexcept { return position_limit_; }
  /// Codes the tiles that `length` tokens have completed.
  Status extend(const KvStore& store, std::int64_t length);
  void truncate(std::int64_t length) noexcept;

  /// Takes over a saved layer; after the last, finish_restore().
  void restore_layer(LayerIndex layer, CodeIndex index);
  void finish_restore(std::int64_t made_at, std::int64_t position_limit) noexcept {
    made_at_ = made_at;
    position_limit_ = position_limit;
  }

  std::int64_t n_tiles() const noexcept;  // the most of any layer
  std::size_t code_bytes() const noexcept;
  std::size_t query_bytes() const noexcept;

 private:
  struct Layer {
    CodeIndex index;
    int n_heads = 0;                      // of the queries that were kept
    std::vector<std::uint16_t> queries;   // ring [kQueryPositions / 2, n_heads, head_dim], halves
    std::vector<std::int64_t> positions;  // of the ring's tokens; -1: none
  };
  static bool make_room(Layer& layer, int n_heads, std::size_t width) noexcept;
  AttentionShape shape_of(std::size_t layer) const noexcept;
  std::vector<float> sample_of(const Layer& layer, std::int64_t length,
                               std::vector<std::int64_t>& positions) const;
  Result<LayerCode> make_code(const KvStore& store, std::size_t layer, std::int64_t length,
                              const IndexOptions& options,
                              std::vector<HeadDiagnostics>* diagnostics) const;
  bool records(std::int64_t position) const noexcept;

  IndexPlan plan_;
  StoreLayout layout_;
  std::vector<Layer> layers_;
  std::int64_t made_at_ = 0;  // length of the memory when the code was made
  std::int64_t position_limit_ = 0;
};

}  // namespace volvelle
