// Certificates of a read's attention weights under edited or left-out keys, beside the truth.
#pragma once

#include <span>
#include <vector>

#include "bounds/edit_bound.hpp"

namespace volvelle {

/// One query over the rows [0, n_rows) of keys.
struct ReadQuestion {
  BandLayout layout;
  std::span<const float> query;  // [head_dim]
  std::int64_t n_rows = 0;
  double scale = 1.0;             // of products: logits
  std::span<const float> values;  // [n, value_dim]
  int value_dim = 0;
  double radius = 0.0;  // of a ball that holds all values
  std::span<const float> used_values = {};  // [n, value_dim] of the read; nothing: the same
};

struct ReadCertificate {
  double variation = 0.0;      // total variation between exact weights and those used
  double bound = 0.0;          // of it, known without the exact keys
  std::vector<double> change;  // [value_dim]: output with the weights used - exact output
  double change_bound = 0.0;   // of its length
};

/// The least of the uniform and the weighted bound, from the lengths of the query's bands and of
/// the edits'.
ReadCertificate certify_edit(const ReadQuestion& question, std::span<const float> keys,
                             std::span<const float> edited);
/// Rows with dropped[t] are left out. Their logits are bounded by the longest bands of any of them,
/// and by the distance of each from their mean.
ReadCertificate certify_eviction(const ReadQuestion& question, std::span<const float> keys,
                                 const std::vector<bool>& dropped);

}  // namespace volvelle
