// Distances at which a key's address comes back, by the engine's own rotary op: one key with bands
// of length 1 turned to every position, and the same search over what comes out. They must be the
// integers that follow from the configuration alone.
//
// The op multiplies its angle from band to band in float, so frequencies are a few 1e-7 off; that
// moves values of the kernel by less than the gaps between its peaks here, so the integers agree.
#include <ggml-backend.h>
#include <ggml.h>

#include <cmath>
#include <memory>

#include "eval/rotary_study.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

constexpr std::int64_t kBlock = 8192;  // positions at once

/// g(0) to g(last) by the op.
std::vector<double> table_of_op(const RopeNode& node, std::int64_t last) {
  ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  const ggml_init_params params{16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true};
  ggml_context* const context = ggml_init(params);
  ggml_tensor* const key = ggml_new_tensor_3d(context, GGML_TYPE_F32, node.rotated_dims, 1, kBlock);
  ggml_tensor* const positions = ggml_new_tensor_1d(context, GGML_TYPE_I32, kBlock);
  const bool halves = node.layout == RopeLayout::kHalfSplit;
  ggml_tensor* const out = ggml_rope_ext(
      context, key, positions, nullptr, node.rotated_dims, halves ? GGML_ROPE_TYPE_NEOX : 0,
      static_cast<int>(node.original_context), static_cast<float>(node.base),
      static_cast<float>(node.frequency_scale), static_cast<float>(node.extrapolation),
      static_cast<float>(node.attention_factor), static_cast<float>(node.beta_fast),
      static_cast<float>(node.beta_slow));
  ggml_cgraph* const graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, out);
  ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
  const auto dim = static_cast<std::size_t>(node.rotated_dims);
  std::vector<float> content(dim * static_cast<std::size_t>(kBlock), 0.0f), turned(content.size());
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = (halves ? i % dim < dim / 2 : i % 2 == 0) ? 1.0f : 0.0f;
  ggml_backend_tensor_set(key, content.data(), 0, content.size() * sizeof(float));
  std::vector<double> table;
  for (std::int64_t first = 0; first <= last; first += kBlock) {
    std::vector<std::int32_t> at(static_cast<std::size_t>(kBlock));
    for (std::size_t i = 0; i < at.size(); ++i)
      at[i] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(i);
    ggml_backend_tensor_set(positions, at.data(), 0, at.size() * sizeof(std::int32_t));
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS)
      throw std::runtime_error("the op did not run");
    ggml_backend_tensor_get(out, turned.data(), 0, turned.size() * sizeof(float));
    for (std::size_t i = 0; i < at.size() && std::ssize(table) <= last; ++i) {
      double sum = 0.0;
      for (std::size_t x = 0; x < dim; ++x)
        sum += static_cast<double>(content[x]) * static_cast<double>(turned[i * dim + x]);
      table.push_back(sum / static_cast<double>(dim / 2));
    }
  }
  ggml_backend_buffer_free(buffer);
  ggml_free(context);
  ggml_backend_free(backend);
  return table;
}

void expect_same_integers(const RopeNode& node, std::int64_t last, std::int64_t expected = 0) {
  const BandFrequencies bands = require(node_frequencies(node));
  const KernelAlias predicted = kernel_alias(kernel_table(bands, {}, last));
  const std::vector<double> table = table_of_op(node, last);
  const KernelAlias measured = kernel_alias(table);
  EXPECT_EQ(measured.distance, predicted.distance);
  if (expected > 0) {
    EXPECT_EQ(predicted.distance, expected);
  }
  EXPECT_NEAR(measured.value, predicted.value, 1e-3);
  const RotaryFacts facts = rotary_facts(bands, last);
  const double levels[] = {0.75, 0.5, 0.25, 0.0};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(first_below(table, levels[i]), facts.crossings[i]);
}

TEST(RopeOp, AliasesOfConfigurationsAreThoseOfTheOp) {
  const auto node = [](int dims, double base, RopeLayout layout) {
    return RopeNode{.layout = layout, .rotated_dims = dims, .base = base};
  };
  expect_same_integers(node(64, 1e4, RopeLayout::kHalfSplit), 32768, 772);
  expect_same_integers(node(128, 1e4, RopeLayout::kAdjacentPairs), 131072, 102806);
  expect_same_integers(node(128, 1e6, RopeLayout::kHalfSplit), 131072, 32007);
  RopeNode linear = node(128, 1e4, RopeLayout::kHalfSplit);
  linear.frequency_scale = 0.25;
  expect_same_integers(linear, 32768, 7338);
}

TEST(RopeOp, AliasesOfRealModelsAreThoseOfTheOp) {
  const ModelRotations smol = require(model_rotations(load_model(kSmolQ41)));
  expect_same_integers(smol.groups[0].node, 131072, 4141);
  const ModelRotations gemma = require(model_rotations(load_model(kGemmaF32)));
  for (const RotationGroup& group : gemma.groups) expect_same_integers(group.node, 131072);
}

}  // namespace
}  // namespace volvelle::test
