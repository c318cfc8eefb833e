// How models make their queries, read off their graphs: no query that a model really makes exceeds
// what the path and the weights allow it, and what is not known says so.
#include "runtime/query_path.hpp"

#include <cmath>
#include <random>

#include "eval/head_capture.hpp"
#include "eval/head_weights.hpp"
#include "eval/model_rotation.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

/// How close a model's own queries come to what its weights allow.
struct Closest {
  double band = -1.0;  // -1: no layer has a bound
  double edit = -1.0;
};

void look(const HeadSample& sample, int g, const BandLayout& layout, const QueryFactor& factor,
          Closest& closest) {
  std::mt19937 random(static_cast<unsigned>(g + 1));
  std::normal_distribution<float> normal;
  for (std::int64_t t = 0; t < sample.n; ++t) {
    const std::span<const float> q(sample.query(g, t), static_cast<std::size_t>(sample.dim));
    for (int b = 0; b < layout.n_bands(); ++b) {
      const double length =
          std::hypot(static_cast<double>(q[static_cast<std::size_t>(layout.first(b))]),
                     static_cast<double>(q[static_cast<std::size_t>(layout.second(b))]));
      closest.band = std::max(closest.band, length / factor.band[static_cast<std::size_t>(b)]);
    }
    // An edit of all dimensions, and one along the query itself, which changes scores most.
    for (const bool along : {false, true}) {
      std::vector<float> edit(q.size());
      double change = 0.0;
      for (std::size_t i = 0; i < q.size(); ++i) {
        edit[i] = along ? q[i] : normal(random);
        change += static_cast<double>(q[i]) * static_cast<double>(edit[i]);
      }
      const std::vector<float> none(q.size(), 0.0f);
      const double bound = edit_bound(factor, edit_between(layout, none, edit));
      closest.edit = std::max(closest.edit, std::abs(change) / bound);
    }
  }
}

Closest closest_queries(const Model& model) {
  std::mt19937 random(1);
  std::vector<TokenId> tokens;
  for (int i = 0; i < 96; ++i)
    tokens.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(model.info().n_vocab)));
  SessionOptions options;
  options.n_threads = 1;
  const ProgressSink quiet;
  ProgressMeter meter(quiet, "", "", 0);
  const LayerSamples layers = require(capture_heads(model, tokens, options, meter));
  const ModelWeights weights = require(ModelWeights::open(model));
  Closest closest;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto factors = query_factors(model, weights, static_cast<int>(i));
    if (layers[i].empty() || !query_paths(model)[i].rope) continue;
    if (!factors.ok()) throw std::runtime_error(factors.error().message);
    const BandLayout layout = require(band_layout(model, static_cast<int>(i)));
    for (std::size_t h = 0; h < factors->size(); ++h) {
      const HeadSample& sample = layers[i][h / static_cast<std::size_t>(layers[i][0].group)];
      look(sample, static_cast<int>(h) % sample.group, layout, (*factors)[h], closest);
    }
  }
  return closest;
}

TEST(QueryPath, NoQueryExceedsWhatItsPathAllows) {
  for (const char* name : {"tiny/llama-gqa3.gguf",
                           "tiny/llama-mha.gguf",
                           "tiny/qwen2.gguf",
                           "tiny/qwen3.gguf",
                           "tiny/gemma2.gguf",
                           "tiny/olmo2.gguf",
                           "tiny/phi3-partial.gguf",
                           "tiny/gptneox.gguf",
                           "tiny/stablelm.gguf",
                           "tiny/starcoder2.gguf",
                           "tiny/exaone4.gguf",
                           "tiny/glm4.gguf",
                           "tiny/granite.gguf",
                           "tiny/llama-rope-yarn.gguf",
                           "tiny/llama-rope-yarn-mscale.gguf",
                           "tiny/llama-rope-llama3.gguf",
                           "tiny/llama-moe.gguf",
                           "tiny/openelm.gguf",
                           "tiny/plamo3-k64-v32.gguf",
                           "tiny/mimo2.gguf",
                           "tiny/olmo3.gguf",
                           "tiny/phi3.gguf"}) {
    SCOPED_TRACE(name);
    const Model model = load_model(name);
    const Closest closest = closest_queries(model);
    EXPECT_GT(closest.band, 0.0) << query_paths(model)[0].unknown;
    // Weights of these models are floats, so activations are not rounded but by the products.
    EXPECT_LE(closest.band, 1.0 + 1e-6);
    EXPECT_GT(closest.edit, 0.001);
    EXPECT_LE(closest.edit, 1.0 + 1e-6);
  }
}

TEST(QueryPath, StepsAreThoseOfTheModel) {
  const Model llama = load_model("tiny/llama-gqa3.gguf");
  const QueryPath& plain = query_paths(llama)[0];
  EXPECT_EQ(plain.weight, "blk.0.attn_q.weight");
  EXPECT_EQ(plain.gain, "blk.0.attn_norm.weight");
  EXPECT_TRUE(plain.bias.empty());
  EXPECT_FALSE(plain.head_norm);
  EXPECT_FALSE(plain.layer_norm);

  const Model qwen2 = load_model("tiny/qwen2.gguf");
  EXPECT_EQ(query_paths(qwen2)[1].bias, "blk.1.attn_q.bias");
  const Model qwen3 = load_model("tiny/qwen3.gguf");
  EXPECT_EQ(query_paths(qwen3)[0].head_gain, "blk.0.attn_q_norm.weight");
  EXPECT_FALSE(query_paths(qwen3)[0].joint_norm);
  const Model olmo2 = load_model("tiny/olmo2.gguf");
  EXPECT_TRUE(query_paths(olmo2)[0].joint_norm);
  const Model neox = load_model("tiny/gptneox.gguf");
  EXPECT_TRUE(query_paths(neox)[0].layer_norm);
  EXPECT_FALSE(query_paths(neox)[0].shift.empty());
  // Gemma scales queries instead of their products with keys.
  const Model gemma = load_model("tiny/gemma3.gguf");
  EXPECT_NE(query_paths(gemma)[0].scale, 1.0);
  EXPECT_EQ(query_paths(gemma)[0].logit_scale, 1.0);
}

TEST(QueryPath, LayersWithoutRotationAreNamed) {
  const Model cohere = load_model("tiny/cohere2.gguf");  // full layers do not rotate
  const ModelRotations rotations = require(model_rotations(cohere));
  for (const RotationGroup& group : rotations.groups) EXPECT_GT(group.window, 0);
  ASSERT_FALSE(rotations.notes.empty());
  EXPECT_NE(rotations.notes.front().find("not rotated"), std::string::npos);
  const auto none = model_rotations(load_model("tiny/granite-nope.gguf"));
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("not rotated"), std::string::npos);
}

// Layers may differ in their numbers of heads, and one tensor may hold queries, keys and values.
TEST(QueryPath, HeadsOfEveryLayerAreItsOwn) {
  const Model openelm = load_model("tiny/openelm.gguf");
  const auto paths = query_paths(openelm);
  EXPECT_LT(paths.front().n_heads, paths.back().n_heads);
  const ModelWeights weights = require(ModelWeights::open(openelm));
  EXPECT_EQ(require(query_factors(openelm, weights, 0)).size(),
            static_cast<std::size_t>(paths[0].n_heads));
  const Model phi = load_model("tiny/phi3.gguf");
  const ModelWeights fused = require(ModelWeights::open(phi));
  const auto heads = require(head_weights(phi, fused, 0));
  const LayerShape& shape = phi.info().layers[0];
  ASSERT_EQ(heads.size(), static_cast<std::size_t>(shape.n_kv_heads));
  const auto rows = require(fused.rows(query_paths(phi)[0].weight));
  const auto gain = require(fused.rows(query_paths(phi)[0].gain));
  const std::size_t n_embd = gain.size();
  const std::size_t first_key =
      static_cast<std::size_t>(query_paths(phi)[0].n_heads * shape.head_dim_k) * n_embd;
  EXPECT_EQ(heads[0].key[5], rows[first_key + 5] * gain[5]);
  EXPECT_EQ(heads[0].query[7], rows[7] * gain[7]);
}

// A tensor of factors (llama3) changes the frequencies that are analysed, and metadata that say
// nothing else agree with the graph.
TEST(QueryPath, FrequenciesAreTheGraphsOwn) {
  const Model model = load_model("tiny/llama-rope-llama3.gguf");
  const ModelRotations rotations = require(model_rotations(model));
  const RotationGroup& group = rotations.groups.front();
  EXPECT_FALSE(group.node.factors.empty());
  const auto plain = require(node_frequencies({.layout = group.node.layout,
                                               .rotated_dims = group.node.rotated_dims,
                                               .base = group.node.base}));
  EXPECT_EQ(group.bands.theta.front(), plain.theta.front());
  EXPECT_LT(group.bands.theta.back(), 0.9 * plain.theta.back());
  const Model linear = load_model("tiny/llama-rope-linear.gguf");
  const ModelRotations scaled = require(model_rotations(linear));
  EXPECT_NE(scaled.groups.front().node.frequency_scale, 1.0);
  EXPECT_TRUE(scaled.notes.empty()) << scaled.notes.front();
}

TEST(ModelWeights, AnyTensorTypeTurnsIntoFloats) {
  const Model exact = load_model(kSmolF32);
  const Model coarse = load_model(kSmolQ41);
  const ModelWeights one = require(ModelWeights::open(exact));
  const ModelWeights other = require(ModelWeights::open(coarse));
  const auto a = require(one.rows("blk.3.attn_q.weight", 64));
  const auto b = require(other.rows("blk.3.attn_q.weight", 64));
  ASSERT_EQ(a.size(), 64U * 576U);
  ASSERT_EQ(a.size(), b.size());
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(a[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / size), 0.1);  // four bits
  EXPECT_FALSE(one.rows("no.such.tensor").ok());
  EXPECT_FALSE(one.rows("blk.3.attn_q.weight", 577).ok());
}

}  // namespace
}  // namespace volvelle::test
