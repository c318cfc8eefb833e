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

/// Longest band of any query of a model's layers over its bound; -1: no layer has a bound.
double largest_share(const Model& model) {
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
  double largest = -1.0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto factors = query_factors(model, weights, static_cast<int>(i));
    if (!factors.ok() || layers[i].empty()) continue;
    const BandLayout layout = require(band_layout(model, static_cast<int>(i)));
    for (std::size_t h = 0; h < factors->size(); ++h) {
      const HeadSample& sample = layers[i][h / static_cast<std::size_t>(layers[i][0].group)];
      const int g = static_cast<int>(h) % sample.group;
      for (std::int64_t t = 0; t < sample.n; ++t) {
        const float* const q = sample.query(g, t);
        for (int b = 0; b < layout.n_bands(); ++b) {
          const double length = std::hypot(static_cast<double>(q[layout.first(b)]),
                                           static_cast<double>(q[layout.second(b)]));
          largest = std::max(largest, length / (*factors)[h].band[static_cast<std::size_t>(b)]);
        }
      }
    }
  }
  return largest;
}

TEST(QueryPath, NoQueryExceedsWhatItsPathAllows) {
  for (const char* name :
       {"tiny/llama-gqa3.gguf", "tiny/llama-mha.gguf", "tiny/qwen2.gguf", "tiny/qwen3.gguf",
        "tiny/gemma2.gguf", "tiny/olmo2.gguf", "tiny/phi3-partial.gguf", "tiny/gptneox.gguf",
        "tiny/stablelm.gguf", "tiny/starcoder2.gguf", "tiny/exaone4.gguf", "tiny/glm4.gguf",
        "tiny/granite.gguf", "tiny/llama-rope-yarn.gguf", "tiny/llama-rope-yarn-mscale.gguf",
        "tiny/llama-rope-llama3.gguf", "tiny/llama-moe.gguf"}) {
    SCOPED_TRACE(name);
    const Model model = load_model(name);
    const double share = largest_share(model);
    EXPECT_GT(share, 0.0) << query_paths(model)[0].unknown;
    // Activations of quantised products are rounded; these models have none.
    EXPECT_LE(share, 1.0 + 1e-6);
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
  const Model granite = load_model("tiny/granite-nope.gguf");
  const auto rotations = model_rotations(granite);
  if (rotations.ok()) {
    EXPECT_FALSE(rotations->notes.empty());
  } else {
    EXPECT_NE(rotations.error().message.find("rotates"), std::string::npos);
  }
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
