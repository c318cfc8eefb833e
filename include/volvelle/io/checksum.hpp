// XXH3-128, the checksum of memory files and fingerprints. It detects damage, not malice: whoever
// can write the file can also write its checksum. Cost: about memory bandwidth.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace volvelle {

using Checksum = std::array<std::byte, 16>;  // canonical (big-endian) form

Checksum checksum(std::span<const std::byte> bytes) noexcept;
std::string to_hex(const Checksum& sum);

/// Incremental form; equal to checksum() of the concatenation.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;
  void update(std::span<const std::byte> bytes) noexcept;
  void update(std::string_view text) noexcept {
    update(std::as_bytes(std::span(text.data(), text.size())));
  }
  Checksum finish() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace volvelle
