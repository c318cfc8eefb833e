// How the layers of a model rotate queries and keys, by the nodes of its graph: the frequencies
// that a run really uses, which need not be what the metadata says.
#pragma once

#include <string>
#include <vector>

#include "rope/frequencies.hpp"
#include "runtime/query_path.hpp"

namespace volvelle {

/// Layers that rotate alike.
struct RotationGroup {
  RopeNode node;
  BandFrequencies bands;
  std::vector<int> layers;
  std::int64_t window = 0;  // the layers' own; 0: none
};

struct ModelRotations {
  std::vector<RotationGroup> groups;  // layers without a window first
  std::vector<std::string> notes;     // layers of unknown rotation, and where metadata disagrees
  /// The group of a layer, or nothing.
  const RotationGroup* of(int layer) const noexcept;
};

/// Fails by name if no layer's rotation is known.
Result<ModelRotations> model_rotations(const Model& model);

/// Frequencies of one node; `factors`: the numbers of its tensor, or none. Fails by name on what is
/// no rotation of plain pairs.
Result<BandFrequencies> node_frequencies(const RopeNode& node, std::vector<double> factors = {});

/// Where the metadata of a model say something else than a node of its layers without a window, a
/// line each.
std::vector<std::string> metadata_differences(const RopeConfig& metadata, const RopeNode& node);

/// One line: "pairs (i, i + 32), base 100000".
std::string describe(const RopeNode& node);

}  // namespace volvelle
