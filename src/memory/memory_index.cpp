// Making, extending and cutting back the index of a memory.
#include "volvelle/memory/memory_index.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "base/result_macros.hpp"
#include "kernels/convert.hpp"
#include "memory/large_pages.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kQueryStep = 2;
constexpr std::int64_t kRing = kQueryPositions / kQueryStep;
constexpr std::int64_t kMinQueries = 64;  // tokens; fewer say too little about a head
constexpr std::int64_t kFloor = 64;       // rows that a read with an error limit begins with

/// Length at which codes made at `made_at` tokens are made again. Codes know the positions and the
/// queries that they were made of: at twice the length they read with three times the error of new
/// ones (docs/benchmarks.md). All queries that are kept must be of positions behind the last
/// making, as those before are given back.
constexpr std::int64_t next_making(std::int64_t made_at) {
  return made_at + std::max((made_at + 1) / 2, kQueryPositions);
}

Error plan_error(const std::string& message) {
  return Error{ErrorCode::kInvalidArgument, "memory spec: " + message};
}

/// Zeroed memory for codes, on large pages where the system has them.
Result<std::shared_ptr<std::byte>> allocate_codes(std::size_t bytes) {
  if (bytes == 0) return std::shared_ptr<std::byte>();  // no layer is served
  std::shared_ptr<std::byte> memory = map_from_large_page(bytes);
  if (memory == nullptr) {
    return Error{ErrorCode::kResourceExhausted, "index: no memory for " + std::to_string(bytes) +
                                                    " bytes of codes; use a spec without topk"};
  }
  // A wish; without it all works.
  ::madvise(memory.get(), bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

Result<IndexPlan> index_plan(const MemorySpec& spec) {
  const TopkTerm& topk = *spec.topk;
  IndexPlan plan;
  plan.dense_layers = spec.dense_layers;
  plan.min_tokens = topk.min.value_or(kMinIndexedTokens);
  plan.options.kind = topk.index == "pca"    ? CodecKind::kPrincipal
                      : topk.index == "dims" ? CodecKind::kDimensions
                                             : CodecKind::kBalanced;
  const bool proved = topk.cert == "exact";
  const bool dithered = topk.cert == "dither";
  if (topk.bits && (*topk.bits < 2 || *topk.bits > 8))
    return plan_error("bits of topk must be 2 to 8, got " + std::to_string(*topk.bits));
  if (topk.rank && topk.bits.value_or(8) != 8)
    return plan_error("topk with rank keeps 8 bits a coordinate; leave bits out, or rank");
  if (proved && (topk.rank || topk.bits.value_or(8) != 8 || topk.index != "saki"))
    return plan_error(
        "cert=exact needs all coordinates with 8 bits; leave index, bits and rank out");
  if (dithered && (topk.rank || topk.tail != "coded"))
    return plan_error(
        "cert=dither needs all coordinates and a coded tail; leave rank and tail out");
  plan.block_anchored = topk.anchor == "block";
  if (plan.block_anchored && topk.cert != "none")
    return plan_error("anchor=block gives estimates; leave cert out, or anchor");
  plan.options.rank = topk.rank.value_or(0);
  plan.options.bits = topk.bits ? *topk.bits : proved ? 8.0 : dithered ? 5.0 : 3.0;
  plan.options.value_bits = topk.tail == "coded" ? 3.0 : 0.0;
  plan.options.norms = proved;
  plan.options.dither = dithered ? Dither::kSubtractive : Dither::kNone;
  plan.policy.k = topk.k.value_or(kFloor);
  plan.policy.max_error = topk.max_error.value_or(0.0);
  plan.policy.certificate = proved     ? CertificateKind::kExact
                            : dithered ? CertificateKind::kDithered
                                       : CertificateKind::kNone;
  plan.policy.coded_tail = topk.tail == "coded";
  plan.policy.sinks = plan.options.sinks;
  return plan;
}

MemoryIndex::MemoryIndex(IndexPlan plan, StoreLayout layout)
    : plan_(std::move(plan)), layout_(std::move(layout)), layers_(layout_.layers.size()) {}

bool MemoryIndex::serves(LayerIndex layer) const noexcept {
  const LayerShape& shape = layout_.layers[static_cast<std::size_t>(layer.value())];
  if (shape.n_kv_heads == 0 || shape.window > 0) return false;
  return !plan_.dense_layers || layer.value() < plan_.dense_layers->first ||
         layer.value() > plan_.dense_layers->last;
}

// Between one making and the next the queries in between are of no use.
bool MemoryIndex::records(std::int64_t position) const noexcept {
  return position % kQueryStep == 0 && position_limit_ == 0 &&
         (made_at_ == 0 || position >= next_making(made_at_) - kQueryPositions);
}

// The one allocation inside an op: once a layer and memory. Without room there is no index, and
// reads stay exact.
bool MemoryIndex::make_room(Layer& layer, int n_heads, std::size_t width) noexcept {
  try {
    layer.positions.assign(static_cast<std::size_t>(kRing), -1);
    layer.queries.resize(static_cast<std::size_t>(kRing) * width);
  } catch (const std::bad_alloc&) {
    layer.positions.clear();
    return false;
  }
  layer.n_heads = n_heads;
  return true;
}

void MemoryIndex::observe(LayerIndex layer, const AttendTask& task, std::int64_t first) noexcept {
  if (!serves(layer)) return;
  Layer& kept = layers_[static_cast<std::size_t>(layer.value())];
  const int dim = task.shape.head_dim_k;
  const auto width = static_cast<std::size_t>(task.shape.n_heads * dim);
  if (kept.n_heads != 0 && kept.n_heads != task.shape.n_heads) return;
  // Of a long ubatch only the last positions matter.
  const std::int64_t begin = std::max<std::int64_t>(0, task.n_tokens() - kQueryPositions);
  for (std::int64_t i = begin; i < task.n_tokens(); ++i) {
    if (!records(first + i)) continue;
    if (kept.queries.empty() && !make_room(kept, task.shape.n_heads, width)) return;
    const auto slot = static_cast<std::size_t>((first + i) / kQueryStep % kRing);
    kept.positions[slot] = first + i;
    for (int head = 0; head < task.shape.n_heads; ++head) {
      convert_row(task.q + i * task.q_token_stride + head * task.q_head_stride,
                  reinterpret_cast<std::byte*>(kept.queries.data() + slot * width +
                                               static_cast<std::size_t>(head * dim)),
                  ElementType::kF16, dim);
    }
  }
}

std::vector<float> MemoryIndex::sample_of(const Layer& layer, std::int64_t length,
                                          std::vector<std::int64_t>& positions) const {
  std::vector<float> sample;
  positions.clear();
  if (layer.positions.empty()) return sample;
  const std::size_t width = layer.queries.size() / layer.positions.size();
  // Ascending positions, so that neighbours in the sample are neighbours in the text.
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t slot = 0; slot < layer.positions.size(); ++slot) {
    const std::int64_t position = layer.positions[slot];
    if (position >= 0 && position < length && position >= length - 2 * kQueryPositions)
      order.emplace_back(position, slot);
  }
  std::sort(order.begin(), order.end());
  sample.resize(order.size() * width);
  for (std::size_t i = 0; i < order.size(); ++i) {
    load_row(reinterpret_cast<const std::byte*>(layer.queries.data() + order[i].second * width),
             ElementType::kF16, sample.data() + i * width, static_cast<std::int64_t>(width));
  }
  for (const auto& [position, slot] : order) positions.push_back(position);
  return sample;
}

bool MemoryIndex::wants_making(std::int64_t length) const noexcept {
  if (position_limit_ > 0 || length < plan_.min_tokens ||
      (made_at_ > 0 && length < next_making(made_at_)))
    return false;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!serves(LayerIndex(static_cast<std::int64_t>(i)))) continue;
    const std::vector<std::int64_t>& positions = layers_[i].positions;
    const auto usable = std::count_if(positions.begin(), positions.end(), [&](std::int64_t p) {
      return p >= 0 && p < length && p >= length - 2 * kQueryPositions;
    });
    if (usable < kMinQueries) return false;
  }
  return true;
}

AttentionShape MemoryIndex::shape_of(std::size_t layer) const noexcept {
  const LayerShape& stored = layout_.layers[layer];
  AttentionShape shape;
  shape.n_heads = layers_[layer].n_heads > 0 ? layers_[layer].n_heads : stored.n_kv_heads;
  shape.n_kv_heads = stored.n_kv_heads;
  shape.head_dim_k = stored.head_dim_k;
  shape.head_dim_v = stored.head_dim_v;
  shape.k_type = layout_.k_type;
  shape.v_type = layout_.v_type;
  return shape;
}

Result<LayerCode> MemoryIndex::make_code(const KvStore& store, std::size_t layer,
                                         std::int64_t length, const IndexOptions& options,
                                         std::vector<HeadDiagnostics>* diagnostics) const {
  std::vector<std::int64_t> positions;
  const std::vector<float> queries = sample_of(layers_[layer], length, positions);
  return make_layer_code(
      shape_of(layer), store.segments(LayerIndex(static_cast<std::int64_t>(layer))), length,
      {queries.data(), std::ssize(positions), positions.data()}, options, diagnostics);
}

namespace {

/// Runs work(i) for i in [0, n) on several threads; the first error.
template <class Work>
Status for_each_layer(std::size_t n, int n_threads, Work work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Status failed;
  const auto run = [&] {
    for (std::size_t i = next++; i < n; i = next++) {
      const Status status = work(i);
      const std::lock_guard lock(mutex);
      if (failed.ok()) failed = status;
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < n_threads; ++i) others.emplace_back(run);
  run();
  others.clear();
  return failed;
}

}  // namespace

Status MemoryIndex::make(const KvStore& store, std::int64_t length, int n_threads,
                         const RopeConfig& rope, IndexDiagnostics* diagnostics) {
  IndexOptions options = plan_.options;
  if (plan_.block_anchored) {
    VOLVELLE_ASSIGN_OR_RETURN(options.frame, make_block_frame(rope));
  }
  if (diagnostics != nullptr) diagnostics->assign(layers_.size(), {});
  std::vector<CodeIndex> made(layers_.size());
  const auto served = [&](std::size_t i) {
    return serves(LayerIndex(static_cast<std::int64_t>(i)));
  };
  const Status coded = for_each_layer(layers_.size(), n_threads, [&](std::size_t i) -> Status {
    if (!served(i)) return {};
    VOLVELLE_ASSIGN_OR_RETURN(LayerCode code,
                              make_code(store, i, length, options,
                                        diagnostics == nullptr ? nullptr : &(*diagnostics)[i]));
    made[i] = CodeIndex(std::make_shared<LayerCode>(std::move(code)));
    return {};
  });
  if (!coded.ok()) return coded;
  // One piece of memory for the tiles of all layers, on large pages where there are any.
  const std::int64_t n_tiles = length / kCodeTile;
  std::size_t bytes = 0;
  for (const CodeIndex& index : made) {
    if (index.ready()) bytes += static_cast<std::size_t>(n_tiles) * index.code().tile_bytes();
  }
  VOLVELLE_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory, allocate_codes(bytes));
  for (CodeIndex& index : made) {
    if (!index.ready()) continue;
    index.provide(memory, n_tiles);
    memory = {memory, memory.get() + static_cast<std::size_t>(n_tiles) * index.code().tile_bytes()};
  }
  const Status filled = for_each_layer(layers_.size(), n_threads, [&](std::size_t i) -> Status {
    CodeScratch scratch;
    while (made[i].ready() && made[i].n_tiles() < n_tiles) {
      VOLVELLE_RETURN_IF_ERROR(made[i].append_tile(
          shape_of(i), store.segments(LayerIndex(static_cast<std::int64_t>(i))), scratch));
    }
    return {};
  });
  if (!filled.ok()) return filled;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].index = std::move(made[i]);
    layers_[i].queries = {};
    layers_[i].positions = {};
  }
  made_at_ = length;
  return {};
}

void MemoryIndex::adopt_codes(const MemoryIndex& other) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i] = {};
    if (!other.layers_[i].index.ready()) continue;
    const std::shared_ptr<const LayerCode>& code = other.layers_[i].index.shared_code();
    layers_[i].index = CodeIndex(code);
    position_limit_ = position_limit_ == 0 ? code->n_rows : std::min(position_limit_, code->n_rows);
  }
  made_at_ = 1;
}

Status MemoryIndex::extend(const KvStore& store, std::int64_t length) {
  if (!ready()) return {};
  CodeScratch scratch;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    CodeIndex& index = layers_[i].index;
    while (index.ready() && (index.n_tiles() + 1) * kCodeTile <= length) {
      VOLVELLE_RETURN_IF_ERROR(index.append_tile(
          shape_of(i), store.segments(LayerIndex(static_cast<std::int64_t>(i))), scratch));
    }
  }
  return {};
}

void MemoryIndex::truncate(std::int64_t length) noexcept {
  for (Layer& layer : layers_) {
    if (layer.index.ready()) layer.index.truncate(length / kCodeTile);
    for (std::int64_t& position : layer.positions) position = position < length ? position : -1;
  }
  // What comes behind may be another text; the code is made again once that is long enough.
  if (ready()) made_at_ = std::max<std::int64_t>(1, std::min(made_at_, length));
}

void MemoryIndex::restore_layer(LayerIndex layer, CodeIndex index) {
  layers_[static_cast<std::size_t>(layer.value())].index = std::move(index);
}

std::int64_t MemoryIndex::n_tiles() const noexcept {
  std::int64_t most = 0;
  for (const Layer& layer : layers_) most = std::max(most, layer.index.n_tiles());
  return most;
}

std::size_t MemoryIndex::code_bytes() const noexcept {
  std::size_t total = 0;
  for (const Layer& layer : layers_) total += layer.index.code_bytes();
  return total;
}

std::size_t MemoryIndex::query_bytes() const noexcept {
  std::size_t total = 0;
  for (const Layer& layer : layers_) total += layer.queries.size() * sizeof(std::uint16_t);
  return total;
}

}  // namespace volvelle
