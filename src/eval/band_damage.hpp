// Damage to bands of keys before they are stored.
#pragma once

#include <memory>
#include <string_view>

#include "eval/model_rotation.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

/// An eighth of a head's bands: "slow", "fast" or "random".
std::vector<int> chosen_bands(const BandFrequencies& bands, std::string_view which,
                              std::uint64_t seed);

/// Takes the chosen bands off every key (size 0), or adds to them vectors in random directions
/// whose lengths together are `size` times the key's norm. The same key gets the same damage in any
/// chunk.
RowEditor damage_bands(std::shared_ptr<const ModelRotations> rotations, std::string_view which,
                       double size, std::uint64_t seed);

}  // namespace volvelle
