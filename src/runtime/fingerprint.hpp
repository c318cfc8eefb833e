// Identity of a model file: a memory is only good for the model whose rows it holds. Hashes do not
// depend on the order of entries in the file, nor on its name or title. Private to runtime.
#pragma once

#include <string>

#include "volvelle/base/cancel.hpp"
#include "volvelle/io/gguf.hpp"

namespace volvelle {

/// Hex hash of the metadata entries that `wanted` selects, independent of their order.
std::string hash_metadata(const GgufFile& file, bool (*wanted)(const std::string& key));

/// As model_fingerprint(), for a file whose header is already read.
Result<std::string> fingerprint_of(const GgufFile& file, const CancelToken& cancel);

}  // namespace volvelle
