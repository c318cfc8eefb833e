// The sink is called on engine threads, one row block at a time; each writes places of its own.
#include "eval/head_capture.hpp"

#include <algorithm>

#include "base/result_macros.hpp"
#include "runtime/query_path.hpp"

namespace volvelle {
namespace {

LayerSamples empty_samples(const Model& model, std::int64_t n, bool with_values) {
  const ModelInfo& info = model.info();
  LayerSamples samples(info.layers.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const LayerShape& layer = info.layers[i];
    // Rows that several layers read would get the queries of the last of them.
    if (layer.n_kv_heads == 0 || layer.window > 0 || info.layer_readers[i] != 1) continue;
    HeadSample head;
    head.dim = layer.head_dim_k;
    head.group = query_paths(model)[i].n_heads / layer.n_kv_heads;
    head.n = n;
    head.scale = query_paths(model)[i].logit_scale;
    head.keys.resize(static_cast<std::size_t>(n * head.dim));
    head.queries.resize(head.keys.size() * static_cast<std::size_t>(head.group));
    head.value_dim = with_values ? layer.head_dim_v : 0;
    head.values.resize(static_cast<std::size_t>(n * head.value_dim));
    samples[i].assign(static_cast<std::size_t>(layer.n_kv_heads), head);
  }
  return samples;
}

void keep(const CapturedRows& rows, LayerSamples& samples) {
  std::vector<HeadSample>& heads = samples[static_cast<std::size_t>(rows.layer.value())];
  const bool is_value = rows.kind == CapturedRows::Kind::kValue;
  if (heads.empty() || (is_value && heads.front().value_dim == 0)) return;
  const int group = heads.front().group;
  for (std::int64_t t = 0; t < rows.n_tokens; ++t) {
    const std::int64_t at = rows.first_position.value() + t;
    for (std::int64_t h = 0; h < rows.n_heads; ++h) {
      const float* from = rows.data + t * rows.token_stride + h * rows.head_stride;
      const bool is_key = rows.kind == CapturedRows::Kind::kKey;
      HeadSample& head = heads[static_cast<std::size_t>(is_key || is_value ? h : h / group)];
      float* const to = is_value ? head.values.data() + at * head.value_dim
                        : is_key ? head.keys.data() + at * head.dim
                                 : head.queries.data() + (h % group * head.n + at) * head.dim;
      std::copy_n(from, is_value ? head.value_dim : head.dim, to);
    }
  }
}

}  // namespace

Result<LayerSamples> capture_heads(const Model& model, std::span<const TokenId> tokens,
                                   const SessionOptions& options, ProgressMeter& meter,
                                   bool with_values) {
  LayerSamples samples = empty_samples(model, std::ssize(tokens), with_values);
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
