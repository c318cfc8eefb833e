// Fourth and fifth phase: chosen rows exactly, the tail from codes, and the outputs.
#include <cmath>
#include <cstring>

#include "attention/output.hpp"
#include "index/topk_phases.hpp"
#include "kernels/project.hpp"

namespace volvelle {
namespace {

constexpr float kMeanShare = 1e-2f;  // of a head's attention weights

std::size_t tail_index(const TopkRead& read, std::int64_t piece, int head) noexcept {
  return static_cast<std::size_t>(piece * read.workspace.max_heads + head);
}
float* tail_sums(const TopkRead& read, std::int64_t piece, int head) noexcept {
  return read.workspace.piece_sums +
         static_cast<std::ptrdiff_t>(tail_index(read, piece, head)) * read.workspace.value_stride;
}

/// Adds a tile's coded values to the sums of its piece.
void add_tile(const TopkRead& read, int kv_head, std::int64_t piece, std::int64_t tile) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  TopkWorkspace::Impl::Thread& thread = read.thread();
  const int group = read.group();
  const int first = kv_head * group;
  const HeadTile codes = read.index.head_tile(kv_head, tile);
  TileBytes bytes[kMaxGroup];
  quantize_tile_weights(w.weights_of(first) + tile * kCodeTile, w.capacity_tiles * kCodeTile, group,
                        codes.value_scales, thread.bytes, bytes);
  float largest = 0.0f;
  for (int g = 0; g < group; ++g) {
    const float factor = w.tile_m[(first + g) * w.capacity_tiles + tile];
    thread.gains[g] = bytes[g].gain * factor;
    PieceTail& tail = w.piece_tails[tail_index(read, piece, first + g)];
    tail.weights += bytes[g].weights * factor;
    tail.bytes += bytes[g].bytes * thread.gains[g];
    largest = std::max(largest, thread.gains[g]);
  }
  if (!(largest > 0.0f)) return;
  ValueScan scan;
  scan.widths = read.index.code().values[static_cast<std::size_t>(kv_head)].widths;
  scan.n_queries = group;
  scan.w = thread.bytes;
  scan.gain = thread.gains;
  scan.acc = tail_sums(read, piece, first);
  scan.acc_stride = w.value_stride;
  add_value_tile(scan, codes.value_levels);
}

/// A tile whose weights hardly matter: its values count as their mean, and its codes are not read.
/// All such tiles of a read weigh at most kMeanShare together; weights stay what they are.
bool take_mean(const TopkRead& read, int kv_head, std::int64_t piece, std::int64_t tile) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const int first = kv_head * read.group();
  const auto weight_of = [&](int head) {
    const std::int64_t at = head * w.capacity_tiles + tile;
    return w.tile_m[at] * w.tile_d[at];
  };
  for (int head = first; head < first + read.group(); ++head) {
    const float limit =
        w.total[static_cast<std::size_t>(head)] * kMeanShare / static_cast<float>(read.n_tiles);
    if (!(weight_of(head) <= limit)) return false;
  }
  for (int head = first; head < first + read.group(); ++head)
    w.piece_tails[tail_index(read, piece, head)].weights += weight_of(head);
  return true;
}

void read_piece(const TopkRead& read, int kv_head, std::int64_t piece) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const AttentionShape& shape = read.shape();
  const RowStates states =
      TopkWorkspace::Impl::group_states(w.piece_states, piece * shape.n_kv_heads + kv_head, shape);
  clear_states(states, read.group());
  const std::int64_t first_tile = read.first_tile(piece);
  const std::int64_t end_tile = read.first_tile(piece + 1);
  for (int g = 0; g < read.group(); ++g) {
    const int head = kv_head * read.group() + g;
    w.piece_tails[tail_index(read, piece, head)] = {};
    std::fill_n(tail_sums(read, piece, head), w.value_stride, 0.0f);
  }
  if (w.dense[static_cast<std::size_t>(kv_head)] != 0) {
    attend_rows(read, kv_head, std::max(read.policy.sinks, first_tile * kCodeTile),
                end_tile * kCodeTile, states);
    return;
  }
  const std::int32_t* rows = w.selected + kv_head * w.capacity_tiles * kCodeTile;
  const std::int32_t* end = rows + w.n_selected[static_cast<std::size_t>(kv_head)];
  const std::int32_t* first =
      std::lower_bound(rows, end, static_cast<std::int32_t>(first_tile * kCodeTile));
  const std::int32_t* last =
      std::lower_bound(first, end, static_cast<std::int32_t>(end_tile * kCodeTile));
  attend_row_list(read, kv_head, first, last - first, states);
  if (!read.policy.coded_tail) return;
  const std::size_t value_bytes =
      static_cast<std::size_t>(kCodeTile) * sizeof(std::uint16_t) +
      read.index.code().values[static_cast<std::size_t>(kv_head)].widths.tile_bytes();
  for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
    while (first != last && *first < tile * kCodeTile) ++first;
    const bool has_chosen = first != last && *first < (tile + 1) * kCodeTile;
    if (!has_chosen && take_mean(read, kv_head, piece, tile)) continue;
    if (tile + 1 < read.n_tiles)
      prefetch_bytes(read.index.head_tile(kv_head, tile + 1).value_scales, value_bytes);
    add_tile(read, kv_head, piece, tile);
  }
}

/// The tail of a query head, all pieces together, as a state in the coordinates of the rows.
/// `states` must be empty.
void tail_state(const TopkRead& read, int kv_head, int head, const RowStates& state) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const RowCode& code = read.index.code().values[static_cast<std::size_t>(kv_head)];
  const int n = code.widths.total();
  float* x = read.thread().value;
  std::fill_n(x, n, 0.0f);
  PieceTail total;
  for (std::int64_t piece = 0; piece < read.n_pieces; ++piece) {
    const PieceTail& tail = w.piece_tails[tail_index(read, piece, head)];
    total.weights += tail.weights;
    total.bytes += tail.bytes;
    const float* sums = tail_sums(read, piece, head);
    for (int i = 0; i < n; ++i) x[i] += sums[i];
  }
  if (total.weights == 0.0f) return;
  for (int i = 0; i < n; ++i) {
    const float center = std::exp2f(static_cast<float>(code.widths.width_of(i) - 1)) - 0.5f;
    x[i] = (x[i] - center * total.bytes) * code.step[static_cast<std::size_t>(i)];
  }
  *state.m = w.top[static_cast<std::size_t>(head)];
  *state.d = total.weights;
  for (int j = 0; j < code.dim; ++j)
    state.o[j] = code.mean[static_cast<std::size_t>(j)] * total.weights;
  add_combination(x, n, code.decode.data(), code.dim, code.dim, state.o);
}

}  // namespace

void read_pieces(const TopkRead& read) noexcept {
  const Items items = share_of(read.n_pieces * read.shape().n_kv_heads, read);
  for (std::int64_t item = items.begin; item < items.end; ++item)
    read_piece(read, static_cast<int>(item / read.n_pieces), item % read.n_pieces);
}

void write_outputs(const TopkRead& read) noexcept {
  TopkWorkspace::Impl& w = read.workspace;
  const AttentionShape& shape = read.shape();
  const Items heads = share_of(shape.n_heads, read);
  bool finite = true;
  for (int head = static_cast<int>(heads.begin); head < heads.end; ++head) {
    const int kv_head = head / read.group();
    const int g = head % read.group();
    const RowStates sum = TopkWorkspace::Impl::group_states(w.recent, kv_head, shape).from(g);
    for (std::int64_t piece = 0; piece < read.n_pieces; ++piece) {
      const RowStates part = TopkWorkspace::Impl::group_states(
          w.piece_states, piece * shape.n_kv_heads + kv_head, shape);
      merge_state(sum, part.from(g), shape.head_dim_v);
    }
    if (read.policy.coded_tail && w.dense[static_cast<std::size_t>(kv_head)] == 0) {
      // The first piece's state has been merged; its place is free.
      const RowStates tail =
          TopkWorkspace::Impl::group_states(w.piece_states, kv_head, shape).from(g);
      clear_states({tail.m, tail.d, tail.o, tail.o_stride}, 1);
      tail_state(read, kv_head, head, tail);
      merge_state(sum, tail, shape.head_dim_v);
    }
    finite = write_output(read.task, read.token, head, {sum.o, *sum.m, *sum.d}) && finite;
  }
  if (!finite) w.not_finite.store(true, std::memory_order_release);
}

}  // namespace volvelle
