// Read-only memory mapping of a whole file. Pages are read when touched and belong to the page
// cache, so a mapped memory costs no RAM of its own. A file that another program truncates
// meanwhile can not be defended against; see security.md.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "volvelle/base/result.hpp"

namespace volvelle {

/// Immutable; copies share one mapping. An empty file maps to an empty span.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::shared_ptr<void> owner() const noexcept { return owner_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<void> owner_;
};

}  // namespace volvelle
