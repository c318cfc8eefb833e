// A node's parameters as one of the known scalings: a factor alone is linear scaling, a mix is
// YaRN, a tensor of divisors (llama3, LongRoPE) divides frequencies one by one.
#include "eval/model_rotation.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "base/result_macros.hpp"
#include "runtime/model_weights.hpp"

namespace volvelle {
namespace {

Error unsupported(const std::string& what) {
  return Error{ErrorCode::kUnsupported, "rotation: " + what};
}

Result<std::vector<double>> factors_of(const Model& model, const RopeNode& node) {
  if (node.factors.empty()) return std::vector<double>();
  VOLVELLE_ASSIGN_OR_RETURN(const ModelWeights weights, ModelWeights::open(model));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> values, weights.rows(node.factors));
  return std::vector<double>(values.begin(), values.end());
}

}  // namespace

std::vector<std::string> metadata_differences(const RopeConfig& metadata, const RopeNode& node) {
  std::vector<std::string> notes;
  const auto differs = [&](const char* what, double said, double used) {
    if (std::abs(said - used) <= 1e-6 * std::abs(said)) return;
    std::ostringstream line;
    line << "metadata say " << what << ' ' << said << ", the graph uses " << used;
    notes.push_back(line.str());
  };
  differs("base", metadata.freq_base, node.base);
  differs("rotated dimensions", metadata.rotated_dims, node.rotated_dims);
  const bool scaled =
      metadata.scaling == RopeScaling::kLinear || metadata.scaling == RopeScaling::kYarn;
  differs("factor", scaled ? metadata.scale_factor : 1.0, 1.0 / node.frequency_scale);
  if (metadata.frequency_factors != !node.factors.empty())
    notes.push_back(metadata.frequency_factors
                        ? "the file has factors of frequencies that the graph does not use"
                        : "the graph divides frequencies by " + node.factors +
                              ", of which metadata say nothing");
  return notes;
}

namespace {

std::string layers_text(const std::vector<int>& layers) {
  std::string text = layers.size() == 1 ? "layer" : "layers";
  for (const int layer : layers) text += ' ' + std::to_string(layer);
  return text;
}

}  // namespace

std::string describe(const RopeNode& node) {
  std::ostringstream line;
  const bool halves = node.layout == RopeLayout::kHalfSplit;
  line << "pairs "
       << (halves ? "(i, i + " + std::to_string(node.rotated_dims / 2) + ")"
                  : std::string("(2 i, 2 i + 1)"))
       << ", base " << node.base;
  if (node.frequency_scale != 1.0) line << ", factor " << 1.0 / node.frequency_scale;
  if (node.extrapolation != 0.0) line << " (yarn from " << node.original_context << ")";
  if (!node.factors.empty()) line << ", divided by " << node.factors;
  return line.str();
}

Result<BandFrequencies> node_frequencies(const RopeNode& node, std::vector<double> factors) {
  if (node.layout != RopeLayout::kAdjacentPairs && node.layout != RopeLayout::kHalfSplit)
    return unsupported("queries are not rotated in plain pairs");
  if (node.extrapolation != 0.0 && (node.extrapolation != 1.0 || !factors.empty()))
    return unsupported("YaRN with a mix of its own, or with a tensor of factors, is not known");
  RotaryConfig config;
  config.rotated_dims = node.rotated_dims;
  config.base = node.base;
  config.factor = 1.0 / node.frequency_scale;
  config.original_context = node.original_context;
  config.beta_fast = node.beta_fast;
  config.beta_slow = node.beta_slow;
  config.attention_factor = node.attention_factor;
  if (node.extrapolation != 0.0) {
    config.scaling = BandScaling::kYarn;
    config.attention_factor *= 1.0 + 0.1 * std::log(config.factor);  // as the op does
  } else if (!factors.empty()) {
    config.scaling = BandScaling::kLongRope;
    factors.resize(static_cast<std::size_t>(node.rotated_dims / 2));
    for (double& divisor : factors) divisor *= config.factor;
    config.factor = 1.0;
    config.divisors = std::move(factors);
  } else if (config.factor != 1.0) {
    config.scaling = BandScaling::kLinear;
  }
  return band_frequencies(config);
}

const RotationGroup* ModelRotations::of(int layer) const noexcept {
  for (const RotationGroup& group : groups) {
    if (std::find(group.layers.begin(), group.layers.end(), layer) != group.layers.end())
      return &group;
  }
  return nullptr;
}

namespace {

/// The group that a layer's rotation belongs to, made if it is the first of its kind.
Result<RotationGroup*> group_of(const Model& model, const QueryPath& path, std::int64_t window,
                                std::vector<RotationGroup>& groups) {
  if (!path.rope) return unsupported(path.unknown.empty() ? "not rotated" : path.unknown);
  const auto same = [&](const RotationGroup& group) {
    return group.node == *path.rope && group.window == window;
  };
  const auto found = std::find_if(groups.begin(), groups.end(), same);
  if (found != groups.end()) return &*found;
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<double> factors, factors_of(model, *path.rope));
  VOLVELLE_ASSIGN_OR_RETURN(BandFrequencies bands,
                            node_frequencies(*path.rope, std::move(factors)));
  groups.push_back({*path.rope, std::move(bands), {}, window});
  return &groups.back();
}

/// What figures of attention weights leave out.
void note_other_logits(std::span<const QueryPath> paths, std::vector<std::string>& notes) {
  std::vector<int> layers;
  for (int layer = 0; layer < std::ssize(paths); ++layer) {
    const QueryPath& path = paths[static_cast<std::size_t>(layer)];
    if (path.capped || path.sink_logits) layers.push_back(layer);
  }
  if (!layers.empty())
    notes.push_back(layers_text(layers) +
                    ": logits have a soft cap or a learned sink, which figures of attention here "
                    "leave out");
}

}  // namespace

Result<ModelRotations> model_rotations(const Model& model) {
  ModelRotations found;
  std::map<std::string, std::vector<int>> unknown;  // by the reason
  const auto paths = query_paths(model);
  for (int layer = 0; layer < std::ssize(paths); ++layer) {
    const LayerShape& shape = model.info().layers[static_cast<std::size_t>(layer)];
    if (shape.n_kv_heads == 0) continue;
    const Result<RotationGroup*> group =
        group_of(model, paths[static_cast<std::size_t>(layer)], shape.window, found.groups);
    if (group.ok()) {
      (*group)->layers.push_back(layer);
    } else {
      unknown[group.error().message].push_back(layer);
    }
  }
  for (const auto& [why, layers] : unknown) found.notes.push_back(layers_text(layers) + ": " + why);
  if (found.groups.empty())
    return unsupported(
        "no layer of this model rotates its queries in a way that is known, so "
        "positions say nothing about its reach (" +
        (found.notes.empty() ? std::string("no attention") : found.notes.front()) + ")");
  std::stable_sort(found.groups.begin(), found.groups.end(),
                   [](const auto& a, const auto& b) { return a.window == 0 && b.window > 0; });
  if (found.groups.front().window == 0) {
    const auto differences = metadata_differences(model.info().rope, found.groups.front().node);
    found.notes.insert(found.notes.end(), differences.begin(), differences.end());
  }
  note_other_logits(paths, found.notes);
  return found;
}

}  // namespace volvelle
