// See kv_comparison.hpp.
#include "eval/kv_comparison.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace volvelle {
namespace {

const float* row(const CapturedRows& rows, std::int64_t token, std::int64_t head) noexcept {
  return rows.data + token * rows.token_stride + head * rows.head_stride;
}

/// 0/0 is "equal": the rows of words without a value are all zero in the wired retriever.
double ratio(double delta, double norm) noexcept {
  if (delta == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(delta / norm);
}

}  // namespace

KvComparison::KvComparison(const std::vector<LayerShape>& layers, std::int64_t max_tokens)
    : layers_(layers.size()) {
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const int dims[2] = {layers[l].head_dim_k, layers[l].head_dim_v};
    for (std::size_t kind = 0; kind < 2; ++kind) {
      Plane& plane = layers_[l][kind];
      plane.n_heads = layers[l].n_kv_heads;
      plane.head_dim = dims[kind];
      plane.reference.resize(static_cast<std::size_t>(max_tokens * plane.n_heads * plane.head_dim));
    }
  }
}

CaptureSink KvComparison::reference_sink() {
  return [this](const CapturedRows& rows) { keep(rows); };
}

CaptureSink KvComparison::candidate_sink() {
  return [this](const CapturedRows& rows) { compare(rows); };
}

void KvComparison::begin(Position first, std::int64_t n_tokens) {
  for (auto& layer : layers_) {
    for (Plane& plane : layer) {
      plane.n_reference = plane.n_candidate = 0;
      plane.sum_squares = plane.sum_squared_delta = 0;
    }
  }
  first_ = first;
  n_tokens_ = n_tokens;
  active_ = true;
  misfit_ = false;
}

KvComparison::Plane* KvComparison::plane_for(const CapturedRows& rows) noexcept {
  if (!active_ || rows.kind == CapturedRows::Kind::kQuery) return nullptr;
  const std::int64_t layer = rows.layer.value();
  const std::int64_t offset = rows.first_position - first_;
  Plane* plane = nullptr;
  if (layer >= 0 && layer < static_cast<std::int64_t>(layers_.size())) {
    plane =
        &layers_[static_cast<std::size_t>(layer)][rows.kind == CapturedRows::Kind::kKey ? 0 : 1];
  }
  const bool fits = plane != nullptr && offset >= 0 && offset + rows.n_tokens <= n_tokens_ &&
                    rows.n_heads == plane->n_heads && rows.head_dim == plane->head_dim;
  if (!fits) misfit_ = true;
  return fits ? plane : nullptr;
}

void KvComparison::keep(const CapturedRows& rows) noexcept {
  Plane* plane = plane_for(rows);
  if (plane == nullptr) return;
  const std::int64_t offset = rows.first_position - first_;
  float* out = plane->reference.data() + offset * plane->n_heads * plane->head_dim;
  for (std::int64_t t = 0; t < rows.n_tokens; ++t) {
    for (std::int64_t h = 0; h < rows.n_heads; ++h) {
      out = std::copy_n(row(rows, t, h), rows.head_dim, out);
    }
  }
  plane->n_reference += rows.n_tokens;
}

void KvComparison::compare(const CapturedRows& rows) noexcept {
  Plane* plane = plane_for(rows);
  if (plane == nullptr) return;
  const std::int64_t offset = rows.first_position - first_;
  const float* expected = plane->reference.data() + offset * plane->n_heads * plane->head_dim;
  for (std::int64_t t = 0; t < rows.n_tokens; ++t) {
    for (std::int64_t h = 0; h < rows.n_heads; ++h) {
      const float* actual = row(rows, t, h);
      for (std::int64_t i = 0; i < rows.head_dim; ++i, ++expected) {
        const double reference = *expected;
        const double delta = actual[i] - reference;
        plane->sum_squares += reference * reference;
        plane->sum_squared_delta += delta * delta;
      }
    }
  }
  plane->n_candidate += rows.n_tokens;
}

Result<double> KvComparison::worst_relative_l2() const {
  if (misfit_) {
    return Error{ErrorCode::kMismatch,
                 "drift: captured key or value rows do not have the model's shape or positions"};
  }
  double worst = 0;
  std::int64_t n_planes = 0;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    for (const Plane& plane : layers_[l]) {
      if (plane.n_reference == 0 && plane.n_candidate == 0) continue;  // reads another layer's rows
      if (plane.n_reference != n_tokens_ || plane.n_candidate != n_tokens_) {
        return Error{ErrorCode::kMismatch,
                     "drift: layer " + std::to_string(l) + " gave key or value rows of " +
                         std::to_string(plane.n_reference) + " tokens in the full run and of " +
                         std::to_string(plane.n_candidate) + " in the fold, not of " +
                         std::to_string(n_tokens_)};
      }
      const double relative = ratio(plane.sum_squared_delta, plane.sum_squares);
      if (!std::isfinite(plane.sum_squared_delta)) {
        return Error{ErrorCode::kNumeric,
                     "drift: key or value rows of layer " + std::to_string(l) + " are not finite"};
      }
      worst = std::max(worst, relative);
      ++n_planes;
    }
  }
  if (n_planes == 0) {
    return Error{ErrorCode::kMismatch, "drift: no key or value rows were captured"};
  }
  return worst;
}

}  // namespace volvelle
