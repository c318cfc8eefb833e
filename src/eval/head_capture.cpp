// The sink is called on engine threads, one row block at a time; each writes places of its own.
#include "eval/head_capture.hpp"

#include <algorithm>

#include "base/result_macros.hpp"
#include "runtime/query_path.hpp"

namespace volvelle {
namespace {

LayerSamples empty_samples(const Model& model, std::int64_t n) {
  const ModelInfo& info = model.info();
  LayerSamples samples(info.layers.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const LayerShape& layer = info.layers[i];
    if (layer.n_kv_heads == 0 || layer.window > 0 || info.n_heads % layer.n_kv_heads != 0) continue;
    HeadSample head;
    head.dim = layer.head_dim_k;
    head.group = info.n_heads / layer.n_kv_heads;
    head.n = n;
    head.scale = query_paths(model)[i].logit_scale;
    head.keys.resize(static_cast<std::size_t>(n * head.dim));
    head.queries.resize(head.keys.size() * static_cast<std::size_t>(head.group));
    samples[i].assign(static_cast<std::size_t>(layer.n_kv_heads), head);
  }
  return samples;
}

void keep(const CapturedRows& rows, LayerSamples& samples) {
  std::vector<HeadSample>& heads = samples[static_cast<std::size_t>(rows.layer.value())];
  if (heads.empty() || rows.kind == CapturedRows::Kind::kValue) return;
  const int group = heads.front().group;
  for (std::int64_t t = 0; t < rows.n_tokens; ++t) {
    const std::int64_t at = rows.first_position.value() + t;
    for (std::int64_t h = 0; h < rows.n_heads; ++h) {
      const float* from = rows.data + t * rows.token_stride + h * rows.head_stride;
      const bool is_key = rows.kind == CapturedRows::Kind::kKey;
      HeadSample& head = heads[static_cast<std::size_t>(is_key ? h : h / group)];
      float* to = is_key ? head.keys.data() + at * head.dim
                         : head.queries.data() + (h % group * head.n + at) * head.dim;
      std::copy_n(from, head.dim, to);
    }
  }
}

}  // namespace

Result<LayerSamples> capture_heads(const Model& model, std::span<const TokenId> tokens,
                                   const SessionOptions& options, ProgressMeter& meter) {
  LayerSamples samples = empty_samples(model, std::ssize(tokens));
  SessionOptions with_capture = options;
  with_capture.capture = [&](const CapturedRows& rows) { keep(rows, samples); };
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, with_capture));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(MemorySpec::full_memory()));
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t n = std::min<std::size_t>(512, tokens.size() - done);
    VOLVELLE_RETURN_IF_ERROR(session.step(memory, tokens.subspan(done, n), Logits::kNone));
    meter.add(static_cast<std::int64_t>(n));
    done += n;
  }
  return samples;
}

}  // namespace volvelle
