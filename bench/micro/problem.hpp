// Seeded attention problems for the benches: layers of random rows, queries, the task, and the
// comparison with float64 that each kernel must pass before it is timed.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "volvelle/attention/attend.hpp"

namespace volvelle::bench {

AttentionShape shape_of(int kv_heads, int group, int dim, ElementType type = ElementType::kF16);
std::string name_of(const AttentionShape& shape);  // "f16 D=64 G=3, 3 KV heads"

/// Layers of random rows, [layer][k, v][kv head][row][dim], 64-byte aligned.
class Rows {
 public:
  Rows(const AttentionShape& shape, std::int64_t rows, int layers);
  ~Rows();
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  static std::size_t layer_bytes(const AttentionShape& shape, std::int64_t rows);
  std::size_t bytes() const {
    return layer_bytes(shape_, rows_) * static_cast<std::size_t>(layers_);
  }
  const std::byte* data() const { return data_; }
  int layers() const { return layers_; }
  KeyValueSegment segment(int layer) const;

 private:
  AttentionShape shape_;
  std::int64_t rows_;
  int layers_;
  std::byte* data_ = nullptr;
};

/// Queries of the last `tokens` tokens, outputs, and the task over layer 0.
class Problem {
 public:
  Problem(const AttentionShape& shape, std::int64_t prefix, std::int64_t tokens, const Rows& rows);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  /// Runs a kernel and ends the program unless what it leaves in out() equals float64 to 1e-4:
  /// first and last token, first and last head.
  void check(const char* name, const std::function<void()>& run);

  const AttentionShape& shape() const { return task_.shape; }
  const AttendTask& task() const { return task_; }
  const KeyValueSegment& segment() const { return segment_; }
  const std::vector<float>& q() const { return q_; }
  std::vector<float>& out() { return out_; }
  double flops() const;  // of exactly the visible pairs

 private:
  std::vector<VisibleRows> visible_;
  std::vector<float> q_;
  std::vector<float> out_;
  KeyValueSegment segment_;
  AttendTask task_;
};

}  // namespace volvelle::bench
