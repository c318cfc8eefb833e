// Identity of a model file.
#pragma once

#include <string>

#include "volvelle/io/gguf.hpp"

namespace volvelle {

/// Hex hash of the metadata entries that `wanted` selects, independent of their order.
std::string hash_metadata(const GgufFile& file, bool (*wanted)(const std::string& key));

/// As model_fingerprint(), for a file whose header is already read.
Result<std::string> fingerprint_of(const GgufFile& file);

}  // namespace volvelle
