// Tiles of codes and their layout.
//
//   per KV head: key scales 128 bytes, key norms 128 bytes (if any), salt of the dither 64 bytes
//   (if any), key levels, value scales 128 bytes, value levels; every part is a multiple of 64
//   bytes
#include "volvelle/index/code_index.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <string>

#include "index/block_frame.hpp"
#include "index/stored_rows.hpp"

namespace volvelle {
namespace {

constexpr std::size_t kSaltBytes = 64;
constexpr std::size_t kHalves = static_cast<std::size_t>(kCodeTile) * sizeof(std::uint16_t);

std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A tile's dither must be new: rows that were cut off and written again have another one.
std::uint64_t draw_salt(CodeScratch& scratch) {
  if (scratch.salts) return (*scratch.salts)();
  std::random_device system;
  return static_cast<std::uint64_t>(system()) << 32 | system();
}

std::shared_ptr<std::byte> allocate_tile(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  void* const memory = ::operator new(bytes, kAlignment, std::nothrow);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory),
          [](std::byte* p) { ::operator delete(p, std::align_val_t{64}); }};
}

}  // namespace

bool LayerCode::codes_all() const noexcept {
  return std::all_of(keys.begin(), keys.end(),
                     [](const RowCode& code) { return code.widths.total() >= code.dim; });
}

std::size_t LayerCode::head_bytes(int head) const noexcept {
  const auto h = static_cast<std::size_t>(head);
  std::size_t bytes = kHalves + (norms ? kHalves : 0) + (dither != Dither::kNone ? kSaltBytes : 0) +
                      padded(keys[h].widths.tile_bytes());
  if (!values.empty()) bytes += kHalves + padded(values[h].widths.tile_bytes());
  return bytes;
}

std::size_t LayerCode::head_offset(int head) const noexcept {
  std::size_t offset = 0;
  for (int h = 0; h < head; ++h) offset += head_bytes(h);
  return offset;
}

std::size_t LayerCode::tile_bytes() const noexcept { return head_offset(n_kv_heads()); }

double LayerCode::bytes_per_row() const noexcept {
  return static_cast<double>(tile_bytes()) / static_cast<double>(kCodeTile * n_kv_heads());
}

CodeIndex::CodeIndex(std::shared_ptr<const LayerCode> code) : code_(std::move(code)) {
  std::size_t offset = 0;
  for (int h = 0; h < code_->n_kv_heads(); ++h) {
    offsets_.push_back(offset);
    offset += code_->head_bytes(h);
  }
  if (code_->frame.block == 0) return;
  for (const RowCode& keys : code_->keys) {
    std::vector<float>& map =
        query_maps_.emplace_back(static_cast<std::size_t>(keys.dim * keys.stride()), 0.0f);
    for (int i = 0; i < keys.widths.total(); ++i) {
      for (int j = 0; j < keys.dim; ++j)
        map[static_cast<std::size_t>(j * keys.stride() + i)] =
            keys.decode[static_cast<std::size_t>(i * keys.dim + j)];
    }
  }
}

/// Of the block of the last tile, if it is the block's first.
void CodeIndex::add_rotation() {
  const BlockFrame& frame = code_->frame;
  if (frame.block == 0) return;
  const auto n = static_cast<std::int64_t>(frame.angles.size());
  const std::int64_t block = (n_tiles() - 1) * kCodeTile / frame.block;
  if (std::ssize(rotations_) >= (block + 1) * 2 * n) return;
  for (const bool sine : {false, true}) {
    for (const float angle : frame.angles) {
      const double at =
          static_cast<double>(angle) * static_cast<double>(frame.middle(block * frame.block));
      rotations_.push_back(static_cast<float>(sine ? std::sin(at) : std::cos(at)));
    }
  }
}

void CodeIndex::adopt_tile(std::shared_ptr<const std::byte> tile) {
  tiles_.push_back(std::move(tile));
  add_rotation();
}

HeadTile CodeIndex::head_tile(int head, std::int64_t i) const noexcept {
  const auto h = static_cast<std::size_t>(head);
  const std::byte* at = tile(i) + offsets_[h];
  HeadTile parts;
  parts.key_scales = reinterpret_cast<const std::uint16_t*>(at);
  at += kHalves;
  if (code_->norms) {
    parts.key_norms = reinterpret_cast<const std::uint16_t*>(at);
    at += kHalves;
  }
  if (code_->dither != Dither::kNone) {
    parts.key_salt = reinterpret_cast<const std::uint64_t*>(at);
    at += kSaltBytes;
  }
  parts.key_levels = at;
  at += padded(code_->keys[h].widths.tile_bytes());
  if (code_->values.empty()) return parts;
  parts.value_scales = reinterpret_cast<const std::uint16_t*>(at);
  parts.value_levels = at + kHalves;
  return parts;
}

std::shared_ptr<std::byte> CodeIndex::next_tile() {
  if (provided_.n_tiles == 0) return allocate_tile(code_->tile_bytes());
  std::shared_ptr<std::byte> tile = provided_.memory;
  --provided_.n_tiles;
  provided_.memory = {provided_.memory, provided_.memory.get() + code_->tile_bytes()};
  if (provided_.n_tiles == 0) provided_.memory = nullptr;
  return tile;
}

Status CodeIndex::append_tile(const AttentionShape& shape,
                              std::span<const KeyValueSegment> segments, CodeScratch& scratch) {
  const std::int64_t first = n_tiles() * kCodeTile;
  std::shared_ptr<std::byte> memory = next_tile();
  if (memory == nullptr) {
    return Error{ErrorCode::kResourceExhausted,
                 "index: no memory for the codes of rows " + std::to_string(first) + " to " +
                     std::to_string(first + kCodeTile) + "; use a spec without topk"};
  }
  tiles_.push_back(memory);
  add_rotation();
  const StoredRows rows(shape, segments);
  for (int head = 0; head < code_->n_kv_heads(); ++head) {
    const HeadTile at = head_tile(head, n_tiles() - 1);
    const auto h = static_cast<std::size_t>(head);
    // The tile was allocated above and nobody else has it yet.
    const auto writable = [](const auto* p) {
      return const_cast<std::remove_const_t<std::remove_pointer_t<decltype(p)>>*>(p);
    };
    scratch.rows.resize(
        static_cast<std::size_t>(kCodeTile * std::max(shape.head_dim_k, shape.head_dim_v)));
    if (at.key_salt != nullptr) *writable(at.key_salt) = draw_salt(scratch);
    bool found = rows.load_keys(head, first, kCodeTile, scratch.rows.data());
    for (std::int64_t t = 0; code_->frame.block > 0 && t < kCodeTile; ++t) {
      turn_row_back(code_->frame, rotation(n_tiles() - 1),
                    scratch.rows.data() + t * shape.head_dim_k);
    }
    encode_tile(
        code_->keys[h], CodeSide::kKeys, scratch.rows.data(),
        {writable(at.key_levels), writable(at.key_scales), writable(at.key_norms), at.key_salt},
        scratch);
    if (!code_->values.empty()) {
      found = rows.load_values(head, first, kCodeTile, scratch.rows.data()) && found;
      encode_tile(code_->values[h], CodeSide::kValues, scratch.rows.data(),
                  {writable(at.value_levels), writable(at.value_scales), nullptr, nullptr},
                  scratch);
    }
    if (found) continue;
    tiles_.pop_back();
    return Error{ErrorCode::kInvalidArgument, "index: rows " + std::to_string(first) + " to " +
                                                  std::to_string(first + kCodeTile) +
                                                  " are not in the memory"};
  }
  return {};
}

void CodeIndex::truncate(std::int64_t n_tiles) noexcept {
  if (n_tiles < this->n_tiles())
    tiles_.resize(static_cast<std::size_t>(std::max<std::int64_t>(n_tiles, 0)));
}

std::size_t CodeIndex::code_bytes() const noexcept {
  return ready() ? tiles_.size() * code_->tile_bytes() : 0;
}

}  // namespace volvelle
