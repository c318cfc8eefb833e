// Which instruction set the kernels use.
//
// By itself the best one of this processor (the scan of codes then also uses AVX-512's VNNI).
// VOLVELLE_ISA (avx3 = AVX-512, avx2, sse4, ssse3,
// scalar) forces another, for comparisons and for processors below AVX2, which are too slow to be
// taken silently.
#pragma once

#include <string>
#include <vector>

#include "volvelle/base/result.hpp"

namespace volvelle {

/// Applies VOLVELLE_ISA. Fails if the name is unknown or this processor lacks it, or if the
/// variable is unset and the processor has no AVX2. Call it once at start, before threads use
/// kernels.
Status select_isa();

/// Forces one instruction set by name for the whole process; an empty name goes back to the best
/// one. Not while kernels run.
Status force_isa(const std::string& name);

/// Name of the instruction set in use.
std::string isa_name();

/// Names of all that this processor can run, best first.
std::vector<std::string> supported_isas();

}  // namespace volvelle
