// Reading few rows: a read through an index beside the exact kernel over the same rows.
//
// Rows are random, so the errors say nothing about models; times do not depend on the values. Every
// layer has codes of its own, `bytes` of rows in all, so that caches do not serve either side.
#include <barrier>
#include <cstdio>
#include <cstdlib>

#include "harness.hpp"
#include "problem.hpp"
#include "settings.hpp"
#include "volvelle/index/topk_read.hpp"

namespace volvelle::bench {
namespace {

std::vector<CodeIndex> code_layers(const Problem& p, const Rows& data,
                                   const IndexOptions& options) {
  const std::vector<float> queries(p.q().begin(), p.q().end());
  std::vector<CodeIndex> layers;
  std::shared_ptr<const LayerCode> shared;
  CodeScratch scratch;
  for (int layer = 0; layer < data.layers(); ++layer) {
    const KeyValueSegment segment = data.segment(layer);
    const std::int64_t last = segment.n_rows - 1;
    if (!shared) {
      auto code = make_layer_code(p.shape(), {&segment, 1}, segment.n_rows,
                                  {queries.data(), 1, &last}, options);
      if (!code.ok()) std::exit(1);
      shared = std::make_shared<LayerCode>(std::move(*code));
    }
    CodeIndex index(shared);
    while ((index.n_tiles() + 1) * kCodeTile <= segment.n_rows) {
      if (!index.append_tile(p.shape(), {&segment, 1}, scratch).ok()) std::exit(1);
    }
    layers.push_back(std::move(index));
  }
  return layers;
}

/// Calls read(layer's task, layer, thread) for every layer, as an engine would.
template <class Read>
void over_layers(const Problem& p, const Rows& data, int threads, Read read) {
  std::vector<KeyValueSegment> segments;
  for (int layer = 0; layer < data.layers(); ++layer) segments.push_back(data.segment(layer));
  std::barrier barrier(threads);
  on_threads(threads, [&](int i) {
    for (std::size_t layer = 0; layer < segments.size(); ++layer) {
      AttendTask task = p.task();
      task.segments = {&segments[layer], 1};
      read(task, layer, i);
      barrier.arrive_and_wait();
    }
  });
}

/// What coding new rows costs: one thread, as a decoding memory does it after every 64 tokens.
void append_cost(const Settings& settings, const AttentionShape& shape, std::int64_t rows) {
  const Rows data(shape, rows, 1);
  const Problem p(shape, rows - 1, 1, data);
  const KeyValueSegment segment = data.segment(0);
  std::vector<CodeIndex> empty = code_layers(p, data, {});
  empty[0].truncate(0);
  CodeScratch scratch;
  const std::int64_t tiles = rows / kCodeTile;
  std::vector<Variant> variants = {{"append", [&] {
                                      CodeIndex index = empty[0];
                                      while (index.n_tiles() < tiles) {
                                        if (!index.append_tile(shape, {&segment, 1}, scratch).ok())
                                          std::exit(1);
                                      }
                                    }}};
  alternate(variants, settings.rounds, settings.processor_time, 1);
  const double per_token = variants[0].median() / static_cast<double>(tiles * kCodeTile);
  std::printf("%s: coding a token's rows takes %.2f us a layer (one thread)\n",
              name_of(shape).c_str(), per_token * 1e6);
}

void compare(const Settings& settings, const AttentionShape& shape, std::int64_t rows, int layers) {
  const Rows data(shape, rows, layers);
  Problem p(shape, rows - 1, 1, data);
  auto exact =
      AttendWorkspace::create(settings.threads, shape.n_heads, shape.head_dim_k, shape.head_dim_v)
          .value();
  auto workspace =
      TopkWorkspace::create(settings.threads, shape.n_heads, shape.head_dim_k, shape.head_dim_v)
          .value();
  if (!workspace.reserve(rows / kCodeTile).ok()) std::exit(1);
  const IndexOptions options;
  IndexOptions proved;
  proved.bits = 8.0;
  proved.norms = true;
  const std::vector<CodeIndex> codes = code_layers(p, data, options);
  IndexOptions dithered;
  dithered.bits = 5.0;
  dithered.dither = Dither::kSubtractive;
  IndexOptions anchored;
  RopeConfig rope;
  rope.layout = RopeLayout::kHalfSplit;
  rope.rotated_dims = shape.head_dim_k;
  anchored.frame = make_block_frame(rope).value();
  const std::vector<CodeIndex> certified = code_layers(p, data, proved);
  const std::vector<CodeIndex> random = code_layers(p, data, dithered);
  const std::vector<CodeIndex> blocks = code_layers(p, data, anchored);
  const TopkPolicy plain{.k = 128};
  const TopkPolicy bare{.k = 128, .coded_tail = false};
  const TopkPolicy bound{.k = 128, .certificate = CertificateKind::kExact};
  std::vector<Variant> variants = {{"attend()", [&] {
                                      over_layers(p, data, settings.threads,
                                                  [&](const AttendTask& task, std::size_t, int i) {
                                                    attend(task, exact, i, settings.threads);
                                                  });
                                    }}};
  const auto add = [&](const char* name, const std::vector<CodeIndex>& index,
                       const TopkPolicy& policy) {
    variants.push_back({name, [&] {
                          over_layers(p, data, settings.threads,
                                      [&](const AttendTask& task, std::size_t layer, int i) {
                                        topk_attend(task, index[layer], policy, workspace, i,
                                                    settings.threads);
                                      });
                        }});
  };
  add("topk(k=128)", codes, plain);
  add("topk(k=128,tail=none)", codes, bare);
  add("topk(k=128,cert=exact)", certified, bound);
  add("topk(k=128,cert=dither)", random, {.k = 128, .certificate = CertificateKind::kDithered});
  add("topk(k=128,anchor=block)", blocks, plain);
  alternate(variants, settings.rounds, settings.processor_time, settings.threads);
  std::printf("%s, %lld rows\n", name_of(shape).c_str(), static_cast<long long>(rows));
  for (const Variant& v : variants) {
    std::printf("  %-24s %8.1f us a layer  (%7.1f .. %7.1f)  %5.2f times as fast\n", v.name.c_str(),
                v.median() / layers * 1e6, v.best() / layers * 1e6, v.worst() / layers * 1e6,
                variants[0].median() / v.median());
  }
}

}  // namespace

void topk_suite(const Settings& settings) {
  const auto layers = [&](const AttentionShape& shape, std::int64_t rows) {
    return std::max(1, static_cast<int>(settings.bytes / Rows::layer_bytes(shape, rows)));
  };
  const AttentionShape small = shape_of(3, 3, 64);
  for (const std::int64_t rows : {2048, 4096, 8192})
    compare(settings, small, rows, layers(small, rows));
  const AttentionShape large = shape_of(8, 4, 128);
  for (const AttentionShape& shape : {small, large}) append_cost(settings, shape, 4096);
  for (std::int64_t rows = 8192; rows <= std::min<std::int64_t>(settings.max_context, 131'072);
       rows *= 4) {
    compare(settings, large, rows, layers(large, rows));
  }
}

}  // namespace volvelle::bench
