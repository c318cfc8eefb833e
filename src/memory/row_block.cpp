// Anonymous memory for key and value rows.
//
// One mapping holds the planes of all layers, K and V as [n_kv_heads, capacity, head_dim]. Pages
// become resident when they are first written, so a block of 1024 rows costs only the rows that are
// used; only when all are, the block moves to large pages. Every plane and every head begins at a
// multiple of 64 bytes. Sizes are computed with overflow checks. Cost: one mmap.
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "base/result_macros.hpp"
#include "memory/large_pages.hpp"
#include "volvelle/base/checked.hpp"
#include "volvelle/memory/kv_store.hpp"

namespace volvelle {
namespace {

constexpr std::uint64_t kAlignment = 64;
#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1; older kernels answer EINVAL
#endif

// Bytes of `capacity` rows of one head, rounded up to the alignment.
std::optional<std::uint64_t> head_bytes(ElementType type, int dim, std::int64_t capacity) {
  const auto rows = checked_mul(row_bytes(type, dim), static_cast<std::uint64_t>(capacity));
  const auto padded = rows ? checked_add(*rows, kAlignment - 1) : std::nullopt;
  if (!padded) return std::nullopt;
  return *padded / kAlignment * kAlignment;
}

// Moves `total` past a plane of `n_heads` heads. False on overflow.
bool add_plane(std::uint64_t& total, std::optional<std::uint64_t> head, int n_heads) {
  const auto plane = head ? checked_mul(*head, static_cast<std::uint64_t>(n_heads)) : std::nullopt;
  const auto sum = plane ? checked_add(total, *plane) : std::nullopt;
  if (!sum) return false;
  total = *sum;
  return true;
}

Status check_layout(const StoreLayout& layout, std::int64_t capacity) {
  if (capacity < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 "row block: capacity must be at least 1 row, got " + std::to_string(capacity)};
  }
  if (layout.bytes_per_token() == 0) {
    return Error{ErrorCode::kInvalidArgument, "row block: the layout has no layers with KV heads"};
  }
  for (const LayerShape& shape : layout.layers) {
    if (shape.n_kv_heads == 0) continue;  // stores nothing
    if (shape.n_kv_heads >= 1 && shape.head_dim_k >= 1 && shape.head_dim_v >= 1) continue;
    return Error{ErrorCode::kInvalidArgument,
                 "row block: heads and dimensions must be positive, got " +
                     std::to_string(shape.n_kv_heads) + " heads of " +
                     std::to_string(shape.head_dim_k) + " and " + std::to_string(shape.head_dim_v)};
  }
  return {};
}

Error no_memory(const std::string& why) {
  return Error{ErrorCode::kResourceExhausted, "row block: no memory for key and value rows (" +
                                                  why +
                                                  "); use a shorter context or a windowed memory"};
}

}  // namespace

std::size_t StoreLayout::bytes_per_token() const noexcept {
  std::size_t total = 0;
  for (const LayerShape& shape : layers) {
    total += static_cast<std::size_t>(shape.n_kv_heads) *
             (row_bytes(k_type, shape.head_dim_k) + row_bytes(v_type, shape.head_dim_v));
  }
  return total;
}

void RowBlock::use_large_pages() const noexcept {
  const std::size_t whole = memory.size() / kLargePage * kLargePage;
  if (whole > 0) ::madvise(memory.data(), whole, kCollapse);
}

Result<std::shared_ptr<RowBlock>> allocate_row_block(const StoreLayout& layout,
                                                     std::int64_t capacity) {
  VOLVELLE_RETURN_IF_ERROR(check_layout(layout, capacity));
  // Offsets first, then one mapping: planes in the order layer 0 K, layer 0 V, layer 1 K, ...
  auto block = std::make_shared<RowBlock>();
  std::vector<std::uint64_t> offsets;
  std::uint64_t total = 0;
  for (const LayerShape& shape : layout.layers) {
    const auto k_head = head_bytes(layout.k_type, shape.head_dim_k, capacity);
    const auto v_head = head_bytes(layout.v_type, shape.head_dim_v, capacity);
    offsets.push_back(total);
    if (!add_plane(total, k_head, shape.n_kv_heads)) return no_memory("the size overflows");
    offsets.push_back(total);
    if (!add_plane(total, v_head, shape.n_kv_heads)) return no_memory("the size overflows");
    block->layers.push_back({nullptr, nullptr, *k_head, *v_head});
  }

  const std::shared_ptr<std::byte> memory = map_from_large_page(total);
  if (memory == nullptr) {
    return no_memory(std::to_string(total) + " bytes: " + std::strerror(errno));
  }
  std::byte* const base = memory.get();
  block->owner = memory;
  block->capacity = capacity;
  block->memory = {base, total};
  for (std::size_t layer = 0; layer < block->layers.size(); ++layer) {
    if (layout.layers[layer].n_kv_heads == 0) continue;  // stores nothing
    block->layers[layer].k = base + offsets[2 * layer];
    block->layers[layer].v = base + offsets[2 * layer + 1];
  }
  return block;
}

}  // namespace volvelle
