// The checks of a memory file: XXH3-128 of the header and of each 1 MiB block of the data before
// the tensor "checks". Every byte of a file is either under a check or part of one, so damage
// anywhere is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "volvelle/base/progress.hpp"
#include "volvelle/io/checksum.hpp"

namespace volvelle {

inline constexpr std::uint64_t kCheckBlockBytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kCheckBytes = sizeof(Checksum);

constexpr std::uint64_t n_check_blocks(std::uint64_t data_bytes) noexcept {
  return data_bytes / kCheckBlockBytes + (data_bytes % kCheckBlockBytes != 0 ? 1 : 0);
}

/// A file in memory, cut up for checking. `sums` holds the header's check, then one per block of
/// `data`.
struct CheckedFile {
  std::span<const std::byte> header;
  std::span<const std::byte> data;
  std::span<const std::byte> sums;

  std::uint64_t n_blocks() const noexcept { return n_check_blocks(data.size()); }
  bool header_matches() const noexcept;
  /// The first of the blocks [begin, end) that does not match its check. Uses several threads when
  /// there is much to read.
  std::optional<std::uint64_t> first_damaged(std::uint64_t begin, std::uint64_t end,
                                             const ProgressSink& progress) const;
};

/// Computes all checks of `header` and `data` into `sums`.
void compute_checks(std::span<const std::byte> header, std::span<const std::byte> data,
                    std::span<std::byte> sums, const ProgressSink& progress);

}  // namespace volvelle
