// Ranges and aliases of many heads that rotate alike: cosines are computed once, and every head
// costs products alone. The searches are those of rope/retrieval_range and rope/address_kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rope/address_kernel.hpp"
#include "rope/retrieval_range.hpp"

namespace volvelle {

/// Thread rule: const calls from any thread.
class BandCurves {
 public:
  /// Searches go up to `limit` distances, fewer where the table would have more than 2^22 bands of
  /// distances (64 MiB). Cost: n_bands cosines and sines a distance.
  BandCurves(const BandFrequencies& bands, std::int64_t limit);
  ~BandCurves();
  BandCurves(BandCurves&&) noexcept;

  std::int64_t limit() const noexcept;
  const BandFrequencies& bands() const noexcept;
  /// retrieval_range(bands, logits, threshold, limit()); `smoothed` averages
  /// over distances of another grid, so it ends up to two steps of 1 % elsewhere, and some more for
  /// flat heads far out, whose averages ripple. Cost: 2 n_bands products a
  /// distance up to `hard`, and for each of the grid.
  RetrievalRange range(const LogitBands& logits, double threshold) const;
  /// kernel_alias of the kernel with these weights [n_bands], up to min(limit(), last).
  KernelAlias alias(std::span<const double> weights, std::int64_t last) const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

}  // namespace volvelle
