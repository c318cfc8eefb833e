// Directions are hashed from layer, head, position and band, so they do not depend on the order in
// which an engine's threads come by.
#include "eval/band_damage.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

namespace volvelle {
namespace {

std::uint64_t mixed(std::uint64_t x) noexcept {  // SplitMix64's finalizer
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Damage of one rotation's layers.
struct Plan {
  const RotationGroup* rotation = nullptr;
  std::vector<int> bands;
};

void damage_key(const Plan& plan, int dim, double size, std::uint64_t hash, float* key) {
  const int m = static_cast<int>(plan.rotation->bands.size());
  const bool halves = plan.rotation->node.layout == RopeLayout::kHalfSplit;
  double square = 0.0;
  for (int i = 0; i < dim; ++i) square += static_cast<double>(key[i]) * static_cast<double>(key[i]);
  const double length = size * std::sqrt(square / static_cast<double>(plan.bands.size()));
  for (const int b : plan.bands) {
    float& x = halves ? key[b] : key[2 * b];
    float& y = halves ? key[b + m] : key[2 * b + 1];
    if (size == 0.0) {
      x = y = 0.0f;
      continue;
    }
    hash = mixed(hash + static_cast<std::uint64_t>(b));
    const double angle = static_cast<double>(hash >> 11) * 0x1p-53 * 2.0 * std::numbers::pi;
    x += static_cast<float>(length * std::cos(angle));
    y += static_cast<float>(length * std::sin(angle));
  }
}

}  // namespace

std::vector<int> chosen_bands(const BandFrequencies& bands, std::string_view which,
                              std::uint64_t seed) {
  std::vector<int> order(bands.size());
  std::iota(order.begin(), order.end(), 0);
  // By their frequencies: scalings may change the order.
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return bands.theta[static_cast<std::size_t>(a)] < bands.theta[static_cast<std::size_t>(b)];
  });
  if (which == "fast") std::reverse(order.begin(), order.end());
  if (which == "random") {
    std::mt19937_64 random(seed);
    for (std::size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random() % n]);
  }
  order.resize(std::max<std::size_t>(1, order.size() / 8));
  return order;
}

RowEditor damage_bands(std::shared_ptr<const ModelRotations> rotations, std::string_view which,
                       double size, std::uint64_t seed) {
  std::vector<Plan> plans;
  for (const RotationGroup& group : rotations->groups)
    plans.push_back({&group, chosen_bands(group.bands, which, seed)});
  return [rotations, plans = std::move(plans), size, seed](const EditableRows& rows) {
    if (rows.kind != CapturedRows::Kind::kKey) return;
    const RotationGroup* const rotation = rotations->of(static_cast<int>(rows.layer.value()));
    const auto plan = std::find_if(plans.begin(), plans.end(),
                                   [&](const Plan& p) { return p.rotation == rotation; });
    if (plan == plans.end()) return;  // not rotated
    for (std::int64_t t = 0; t < rows.n_tokens; ++t) {
      for (std::int64_t head = 0; head < rows.n_heads; ++head) {
        const auto layer = static_cast<std::uint64_t>(rows.layer.value());
        const auto position = static_cast<std::uint64_t>(rows.first_position.value() + t);
        const std::uint64_t hash =
            mixed(mixed(mixed(seed + layer) + static_cast<std::uint64_t>(head)) + position);
        damage_key(*plan, static_cast<int>(rows.head_dim), size, hash,
                   rows.data + t * rows.token_stride + head * rows.head_dim);
      }
    }
  };
}

}  // namespace volvelle
