// The one-line form of a RoPE configuration. It is stored in memory files and compared as text, so
// its keys, their order and the number format must stay as they are.
#include "volvelle/rope/rope_config.hpp"

#include <sstream>

namespace volvelle {
namespace {

const char* name(RopeLayout layout) {
  switch (layout) {
    case RopeLayout::kNone:
      return "none";
    case RopeLayout::kAdjacentPairs:
      return "adjacent";
    case RopeLayout::kHalfSplit:
      return "half-split";
    case RopeLayout::kOther:
      return "other";
  }
  return "other";
}

const char* name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kLongRope:
      return "longrope";
  }
  return "none";
}

}  // namespace

std::string RopeConfig::describe() const {
  std::ostringstream out;
  out.precision(9);
  out << "layout=" << name(layout) << " dims=" << rotated_dims << " base=" << freq_base
      << " scaling=" << name(scaling) << " factor=" << scale_factor
      << " original_context=" << original_context
      << " frequency_factors=" << (frequency_factors ? 1 : 0);
  return out.str();
}

}  // namespace volvelle
