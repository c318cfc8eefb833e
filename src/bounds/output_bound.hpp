// From changes of attention weights to changes of what a layer adds (RoAM, certificates of outputs
// and layers): |o - o'| <= 2 TV radius, and |sum_h W_h do_h| <= sum_h |W_h| |do_h|. Thread rule:
// pure functions.
#pragma once

#include <span>

namespace volvelle {

/// Radius of a ball around the middle of the values' ranges that holds all of them. values: [n,
/// dim].
double value_radius(std::span<const float> values, int dim);

/// Largest singular value of columns [first, first + n) of a matrix [n_rows, n_columns], rounded
/// up.
double spectral_norm(std::span<const float> matrix, int n_columns, int first, int n);

/// Bound of a layer's change from its heads': norms of their parts of the output projection, and
/// the bounds of their outputs, [n_heads] each.
double layer_change(std::span<const double> norms, std::span<const double> changes);

}  // namespace volvelle
