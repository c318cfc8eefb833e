// Rows of a layer's segments as floats.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/convert.hpp"
#include "volvelle/attention/attend.hpp"

namespace volvelle {

class StoredRows {
 public:
  StoredRows(const AttentionShape& shape, std::span<const KeyValueSegment> segments)
      : shape_(shape), segments_(segments) {}

  /// Rows [first, first + n) of KV head `head`, [n, dim]. False if some lie in no segment.
  bool load_keys(int head, std::int64_t first, std::int64_t n, float* out) const {
    return load(true, head, first, n, out);
  }
  bool load_values(int head, std::int64_t first, std::int64_t n, float* out) const {
    return load(false, head, first, n, out);
  }

 private:
  bool load(bool keys, int head, std::int64_t first, std::int64_t n, float* out) const {
    const ElementType type = keys ? shape_.k_type : shape_.v_type;
    const int dim = keys ? shape_.head_dim_k : shape_.head_dim_v;
    std::int64_t next = first;
    for (const KeyValueSegment& segment : segments_) {
      if (segment.first_row > next || segment.first_row + segment.n_rows <= next) continue;
      const std::byte* base =
          keys ? segment.k + static_cast<std::size_t>(head) * segment.k_head_stride
               : segment.v + static_cast<std::size_t>(head) * segment.v_head_stride;
      for (; next < first + n && next < segment.first_row + segment.n_rows; ++next) {
        const auto row = static_cast<std::size_t>(next - segment.first_row);
        load_row(base + row * row_bytes(type, dim), type, out + (next - first) * dim, dim);
      }
    }
    return next == first + n;
  }

  const AttentionShape& shape_;
  std::span<const KeyValueSegment> segments_;
};

}  // namespace volvelle
