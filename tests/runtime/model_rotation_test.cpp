// Rotations of rows and edits that rest on them: both layouts, keys shifted to other positions, and
// metadata that say something else than the graph. No model is needed.
#include "eval/model_rotation.hpp"

#include <cmath>
#include <random>

#include "bounds/edit_audit.hpp"
#include "eval/key_edits.hpp"
#include "runtime/support.hpp"

namespace volvelle::test {
namespace {

constexpr int kDim = 64;

RotationGroup rotation_of(RopeLayout layout, int rotated_dims, double base) {
  RotationGroup group;
  group.node = {.layout = layout, .rotated_dims = rotated_dims, .base = base, .factors = {}};
  group.bands = require(node_frequencies(group.node));
  return group;
}

std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> x(n);
  for (float& v : x) v = draw(random);
  return x;
}

/// From the places of one layout to those of the other.
std::vector<float> permuted(const BandLayout& from, const BandLayout& to,
                            std::span<const float> row) {
  std::vector<float> out(row.begin(), row.end());
  for (int b = 0; b < from.n_bands(); ++b) {
    out[static_cast<std::size_t>(to.first(b))] = row[static_cast<std::size_t>(from.first(b))];
    out[static_cast<std::size_t>(to.second(b))] = row[static_cast<std::size_t>(from.second(b))];
  }
  return out;
}

TEST(ModelRotation, NeighboursAreAPermutationOfHalvesToTheLastBit) {
  for (const int rotated : {64, 32}) {
    const RotationGroup halves = rotation_of(RopeLayout::kHalfSplit, rotated, 5e5);
    const RotationGroup pairs = rotation_of(RopeLayout::kAdjacentPairs, rotated, 5e5);
    const BandLayout from = layout_of(halves, kDim), to = layout_of(pairs, kDim);
    for (unsigned trial = 0; trial < 50; ++trial) {
      const auto row = normal(kDim, trial);
      const auto by = static_cast<std::int64_t>(1 + trial * 1999);
      for (const bool rounded : {false, true}) {
        auto turned = row;
        turn_row(halves, by, rounded, turned.data());
        auto other = permuted(from, to, row);
        turn_row(pairs, by, rounded, other.data());
        EXPECT_EQ(other, permuted(from, to, turned));
        auto wrong = row;
        turn_row(pairs, by, rounded, wrong.data());
        EXPECT_NE(wrong, turned);
      }
    }
  }
}

TEST(ModelRotation, ShiftedKeysStandLaterAndMoveAsFarAsIsKnown) {
  constexpr std::size_t kKeys = 500;
  for (const RopeLayout layout : {RopeLayout::kHalfSplit, RopeLayout::kAdjacentPairs}) {
    const RotationGroup rotation = rotation_of(layout, 48, 1e5);
    const auto keys = normal(kKeys * kDim, 9);
    EditTrace trace, again;
    const auto shifted = require(edited_keys("shift", rotation, kDim, keys, 3, trace));
    EXPECT_EQ(require(edited_keys("shift", rotation, kDim, keys, 3, again)), shifted);
    EXPECT_EQ(again.shifts, trace.shifts);
    ASSERT_EQ(trace.shifts.size(), kKeys);
    const auto [least, most] = std::minmax_element(trace.shifts.begin(), trace.shifts.end());
    EXPECT_EQ(*least, 1);
    EXPECT_EQ(*most, 64);
    const auto known = shift_edits(rotation, kDim, keys, trace.shifts, kFloatTurn);
    RatioSummary ratios, halves;
    for (std::size_t j = 0; j < kKeys; ++j) {
      const auto key = std::span(keys).subspan(j * kDim, kDim);
      const auto other = std::span(shifted).subspan(j * kDim, kDim);
      // Turned back by the rest of a way it stands where a single turn brings it.
      std::vector<float> there(other.begin(), other.end()), direct(key.begin(), key.end());
      turn_row(rotation, 100 - trace.shifts[j], false, there.data());
      turn_row(rotation, 100, false, direct.data());
      for (std::size_t i = 0; i < kDim; ++i) ASSERT_NEAR(there[i], direct[i], 4e-6f);
      const BandEdit moved = edit_between(layout_of(rotation, kDim), key, other);
      EXPECT_EQ(moved.unrotated, 0.0);
      for (std::size_t b = 0; b < moved.band.size(); ++b) {
        ratios.add(change_ratio(moved.band[b], known[j].band[b]));
        halves.add(change_ratio(moved.band[b], 0.5 * known[j].band[b]));
      }
    }
    EXPECT_EQ(ratios.violations, 0);
    EXPECT_GT(ratios.largest, 0.999);
    EXPECT_EQ(halves.violations, halves.n);
  }
}

TEST(ModelRotation, EditsOfOtherNamesAreRefused) {
  const RotationGroup rotation = rotation_of(RopeLayout::kHalfSplit, kDim, 1e4);
  const auto keys = normal(kDim * 8, 1);
  EditTrace trace;
  const auto none = edited_keys("shifted", rotation, kDim, keys, 1, trace);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("shifted"), std::string::npos);
  for (const char* edit : {"q8_0", "q4_0", "merge", "single_band", "shift"})
    EXPECT_NE(require(edited_keys(edit, rotation, kDim, keys, 1, trace)), keys) << edit;
}

/// A node and the metadata that say the same.
const RopeNode kNode{
    .layout = RopeLayout::kHalfSplit, .rotated_dims = 64, .base = 1e6, .factors = {}};
RopeConfig agreeing() {
  RopeConfig metadata;
  metadata.layout = RopeLayout::kHalfSplit;
  metadata.rotated_dims = 64;
  metadata.freq_base = 1e6;
  return metadata;
}

void expect_note(const RopeConfig& metadata, const RopeNode& node,
                 const std::vector<std::string>& parts) {
  const std::vector<std::string> notes = metadata_differences(metadata, node);
  ASSERT_EQ(notes.size(), 1U);
  for (const std::string& part : parts)
    EXPECT_NE(notes[0].find(part), std::string::npos) << notes[0];
}

TEST(ModelRotation, MetadataThatAgreeAreNotNoted) {
  EXPECT_TRUE(metadata_differences(agreeing(), kNode).empty());
  RopeConfig metadata = agreeing();
  RopeNode node = kNode;
  // A float's rounding is no disagreement.
  node.base = static_cast<double>(std::nextafter(1e6f, 2e6f));
  EXPECT_TRUE(metadata_differences(metadata, node).empty());
  metadata.scaling = RopeScaling::kLinear;
  metadata.scale_factor = 4.0;
  node.frequency_scale = 0.25;
  EXPECT_TRUE(metadata_differences(metadata, node).empty());
  metadata.scaling = RopeScaling::kYarn;
  EXPECT_TRUE(metadata_differences(metadata, node).empty());
  // LongRoPE's factor is in its tensors.
  metadata.scaling = RopeScaling::kLongRope;
  node.frequency_scale = 1.0;
  EXPECT_TRUE(metadata_differences(metadata, node).empty());
  metadata = agreeing();
  metadata.frequency_factors = true;
  node.factors = "rope_freqs.weight";
  EXPECT_TRUE(metadata_differences(metadata, node).empty());
}

TEST(ModelRotation, MetadataThatDisagreeAreNoted) {
  RopeConfig metadata = agreeing();
  metadata.freq_base = 1e4;
  expect_note(metadata, kNode, {"base", "10000", "1e+06"});
  metadata = agreeing();
  metadata.rotated_dims = 32;
  expect_note(metadata, kNode, {"rotated dimensions", "32", "64"});
  metadata = agreeing();
  metadata.scaling = RopeScaling::kLinear;
  metadata.scale_factor = 4.0;
  expect_note(metadata, kNode, {"factor 4", "uses 1"});
  RopeNode node = kNode;
  node.frequency_scale = 0.5;
  expect_note(agreeing(), node, {"factor 1", "uses 2"});
  metadata = agreeing();
  metadata.frequency_factors = true;
  expect_note(metadata, kNode, {"factors of frequencies that the graph does not use"});
  node = kNode;
  node.factors = "blk.0.rope_freqs";
  expect_note(agreeing(), node, {"blk.0.rope_freqs", "say nothing"});
  metadata = agreeing();
  metadata.freq_base = 5e5;
  metadata.rotated_dims = 128;
  EXPECT_EQ(metadata_differences(metadata, kNode).size(), 2U);
}

}  // namespace
}  // namespace volvelle::test
