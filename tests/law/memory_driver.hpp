// Runs reference nets on the library's memory: ContextMemory + attend(), with the known ways of
// driving it wrongly as switches.
//
// The mutations are those that real implementations of chunked prefill have had; each breaks one of
// the hypotheses of the exactness proof (complete memory, every entry once, global positions,
// bottom-right causal mask). A test that compares a fold with one pass must see every one of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "volvelle/attention/attend.hpp"
#include "volvelle/memory/context_memory.hpp"

namespace volvelle::testing {

enum class Mutation {
  kNone,
  kPositionsRestart,   // every chunk starts at position 0
  kOffsetStuck,        // offset is the length of the last chunk, not of the memory
  kTopLeftMask,        // query i of a chunk sees rows 0..i instead of 0..P+i
  kOffByOne,           // offset is one too large after the first chunk
  kPreviousChunkOnly,  // what lies before the previous chunk is not seen
  kSinkWindow,         // sinks and a window instead of everything
  kDoubleAppend,       // keys and values of every chunk but the first are stored twice
};

struct DriverOptions {
  std::string spec = "full+kv(k=f32,v=f32)";
  Mutation mutation = Mutation::kNone;
  bool deterministic = true;
  int n_threads = 1;
};

class MemoryDriver {
 public:
  using Value = float;

  MemoryDriver(std::vector<AttentionShape> shapes, const DriverOptions& options)
      : shapes_(std::move(shapes)),
        options_(options),
        memory_(make_memory(shapes_, options)),
        workspace_(make_workspace(shapes_, options)) {
    for (AttentionShape& shape : shapes_) {
      shape.k_type = memory_.layout().k_type;
      shape.v_type = memory_.layout().v_type;
    }
  }

  /// A second driver on a clone of the memory. Scratch is shared: drive one at a time.
  MemoryDriver clone() const {
    MemoryDriver copy(*this, memory_.clone());
    return copy;
  }
  const ContextMemory& memory() const { return memory_; }
  ContextMemory& memory() { return memory_; }
  std::int64_t n_consumed() const { return consumed_; }

  void begin(std::span<const TokenId> tokens) {
    tokens_.assign(tokens.begin(), tokens.end());
    memory_.begin(tokens).value();
    visible_.assign(memory_.visible(LayerIndex(0)).begin(), memory_.visible(LayerIndex(0)).end());
    for (std::size_t i = 0; i < visible_.size(); ++i) mutate_visible(visible_[i], i);
    doubles_.clear();
  }

  std::int64_t position(std::size_t i) const { return offset() + static_cast<std::int64_t>(i); }

  void attend(std::size_t layer, std::span<const float> q, std::span<const float> k,
              std::span<const float> v, std::span<float> out) {
    const AttentionShape& shape = shapes_[layer];
    write(layer, k, v);
    if (options_.mutation == Mutation::kDoubleAppend) {
      doubles_.push_back({{k.begin(), k.end()}, {v.begin(), v.end()}});
    }
    AttendTask task;
    task.shape = shape;
    task.segments = memory_.segments(LayerIndex(static_cast<std::int64_t>(layer)));
    task.visible = visible_;
    task.q = q.data();
    task.q_head_stride = shape.head_dim_k;
    task.q_token_stride = static_cast<std::ptrdiff_t>(shape.n_heads) * shape.head_dim_k;
    task.out = out.data();
    task.out_head_stride = shape.head_dim_v;
    task.out_token_stride = static_cast<std::ptrdiff_t>(shape.n_heads) * shape.head_dim_v;
    task.deterministic = options_.deterministic;
    volvelle::attend(task, *workspace_, options_.n_threads);
    EXPECT_FALSE(workspace_->take_not_finite());
  }

  void commit() {
    memory_.commit();
    // As when a model extends the cache that it is given in place and the caller appends the result
    // once more; the first chunk is given none.
    if (options_.mutation == Mutation::kDoubleAppend && consumed_ > 0) append_again();
    last_chunk_ = static_cast<std::int64_t>(tokens_.size());
    consumed_ += last_chunk_;
  }

  /// Forgets the newest tokens.
  Status truncate(std::int64_t length) {
    Status status = memory_.truncate(length);
    if (status.ok()) consumed_ = length;
    return status;
  }

 private:
  MemoryDriver(const MemoryDriver& other, ContextMemory memory)
      : shapes_(other.shapes_),
        options_(other.options_),
        memory_(std::move(memory)),
        workspace_(other.workspace_),
        consumed_(other.consumed_),
        last_chunk_(other.last_chunk_) {}

  static ContextMemory make_memory(const std::vector<AttentionShape>& shapes,
                                   const DriverOptions& options) {
    MemorySpec spec = parse_memory_spec(options.spec).value();
    if (options.mutation == Mutation::kSinkWindow) {
      spec.full = false;
      spec.sink = 4;
      spec.window = WindowTerm{60, 1};
    }
    const KvTypes types = kv_types(spec).value();
    StoreLayout layout;
    layout.k_type = types.k;
    layout.v_type = types.v;
    for (const AttentionShape& shape : shapes) {
      layout.layers.push_back({shape.n_kv_heads, shape.head_dim_k, shape.head_dim_v});
    }
    return ContextMemory::create(std::move(layout), spec).value();
  }

  static std::shared_ptr<AttendWorkspace> make_workspace(const std::vector<AttentionShape>& shapes,
                                                         const DriverOptions& options) {
    int heads = 0;
    int dim_k = 0;
    int dim_v = 0;
    for (const AttentionShape& shape : shapes) {
      heads = std::max(heads, shape.n_heads);
      dim_k = std::max(dim_k, shape.head_dim_k);
      dim_v = std::max(dim_v, shape.head_dim_v);
    }
    return std::make_shared<AttendWorkspace>(
        AttendWorkspace::create(options.n_threads, heads, dim_k, dim_v).value());
  }

  std::int64_t offset() const {
    switch (options_.mutation) {
      case Mutation::kPositionsRestart:
        return 0;
      case Mutation::kOffsetStuck:
        return last_chunk_;
      case Mutation::kOffByOne:
        return consumed_ > 0 ? consumed_ + 1 : 0;
      default:
        return consumed_;
    }
  }

  void mutate_visible(VisibleRows& rows, std::size_t i) const {
    if (options_.mutation == Mutation::kTopLeftMask) {
      rows = {0, 0, static_cast<std::int64_t>(i) + 1};
    }
    if (options_.mutation == Mutation::kPreviousChunkOnly) rows.begin = consumed_ - last_chunk_;
  }

  void write(std::size_t layer, std::span<const float> k, std::span<const float> v) {
    const auto index = LayerIndex(static_cast<std::int64_t>(layer));
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const auto token = static_cast<std::int64_t>(i);
      memory_.write_k(index, token, k.data() + i * (k.size() / tokens_.size()));
      memory_.write_v(index, token, v.data() + i * (v.size() / tokens_.size()));
    }
  }

  void append_again() {
    memory_.begin(tokens_).value();
    for (std::size_t layer = 0; layer < doubles_.size(); ++layer) {
      write(layer, doubles_[layer].first, doubles_[layer].second);
    }
    memory_.commit();
  }

  std::vector<AttentionShape> shapes_;
  DriverOptions options_;
  ContextMemory memory_;
  std::shared_ptr<AttendWorkspace> workspace_;
  std::int64_t consumed_ = 0;
  std::int64_t last_chunk_ = 0;
  std::vector<TokenId> tokens_;
  std::vector<VisibleRows> visible_;
  std::vector<std::pair<std::vector<float>, std::vector<float>>> doubles_;  // [layer] K, V
};

}  // namespace volvelle::testing
