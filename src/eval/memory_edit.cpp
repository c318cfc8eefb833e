// Rows are written into a fresh block for each group of layers, which the new memory takes over.
#include "eval/memory_edit.hpp"

#include <algorithm>
#include <vector>

#include "base/result_macros.hpp"
#include "index/stored_rows.hpp"

namespace volvelle {
namespace {

/// Rows of one plane of a head.
struct Plane {
  std::byte* to = nullptr;
  ElementType type = ElementType::kF16;
};

class GroupCopy {
 public:
  GroupCopy(const ContextMemory& memory, const HeadEdit& edit, std::span<const Position> positions)
      : memory_(memory), edit_(edit), positions_(positions) {}

  Status copy_layer(LayerIndex layer, const RowBlock::LayerPlanes& planes) const {
    const StoreLayout& layout = memory_.layout();
    const LayerShape& shape = layout.layers[static_cast<std::size_t>(layer.value())];
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      const auto h = static_cast<std::size_t>(head);
      VOLVELLE_RETURN_IF_ERROR(copy({layer, head, true, shape.head_dim_k, {}},
                                    {planes.k + h * planes.k_head_stride, layout.k_type}));
      VOLVELLE_RETURN_IF_ERROR(copy({layer, head, false, shape.head_dim_v, {}},
                                    {planes.v + h * planes.v_head_stride, layout.v_type}));
    }
    return {};
  }

 private:
  Status copy(HeadRows head, Plane plane) const {
    const StoreLayout& layout = memory_.layout();
    const LayerShape& stored = layout.layers[static_cast<std::size_t>(head.layer.value())];
    AttentionShape shape;
    shape.n_kv_heads = stored.n_kv_heads;
    shape.head_dim_k = stored.head_dim_k;
    shape.head_dim_v = stored.head_dim_v;
    shape.k_type = layout.k_type;
    shape.v_type = layout.v_type;
    const StoredRows from(shape, memory_.segments(head.layer));
    std::vector<float> rows(positions_.size() * static_cast<std::size_t>(head.dim));
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      float* const row = rows.data() + i * static_cast<std::size_t>(head.dim);
      const std::int64_t at = positions_[i].value();
      if (head.keys ? !from.load_keys(head.head, at, 1, row)
                    : !from.load_values(head.head, at, 1, row)) {
        return Error{ErrorCode::kInvalidArgument,
                     "edit: the memory has no row of position " + std::to_string(at)};
      }
    }
    head.rows = rows;
    VOLVELLE_RETURN_IF_ERROR(edit_(head));
    const std::size_t bytes = row_bytes(plane.type, head.dim);
    for (std::size_t i = 0; i < positions_.size(); ++i)
      convert_row(rows.data() + i * static_cast<std::size_t>(head.dim), plane.to + i * bytes,
                  plane.type, head.dim);
    return {};
  }

  const ContextMemory& memory_;
  const HeadEdit& edit_;
  std::span<const Position> positions_;
};

}  // namespace

Result<ContextMemory> edited_memory(const ContextMemory& memory, const MemorySpec& spec,
                                    const HeadEdit& edit) {
  const LayerGrouping grouping = group_layers(memory.layout(), spec);
  const RowPositions positions = positions_after(grouping, memory.length());
  std::vector<SavedRows> saved;
  for (std::size_t group = 0; group < positions.size(); ++group) {
    const StoreLayout layout = grouping.layout_of(memory.layout(), static_cast<int>(group));
    VOLVELLE_ASSIGN_OR_RETURN(auto block, allocate_row_block(layout, std::ssize(positions[group])));
    const GroupCopy copy(memory, edit, positions[group]);
    for (std::size_t layer = 0; layer < layout.layers.size(); ++layer) {
      if (layout.layers[layer].n_kv_heads == 0) continue;
      VOLVELLE_RETURN_IF_ERROR(
          copy.copy_layer(LayerIndex(static_cast<std::int64_t>(layer)), block->layers[layer]));
    }
    saved.push_back({std::move(block), positions[group]});
  }
  return ContextMemory::restore(memory.layout(), spec, memory.tokens(), saved);
}

}  // namespace volvelle
