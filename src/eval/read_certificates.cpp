// All in double. Cost: rows x head_dim products.
#include "eval/read_certificates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "bounds/weight_variation.hpp"

namespace volvelle {
namespace {

std::span<const float> row_of(std::span<const float> keys, std::int64_t t, int dim) {
  return keys.subspan(static_cast<std::size_t>(t) * static_cast<std::size_t>(dim),
                      static_cast<std::size_t>(dim));
}

std::vector<double> logits_of(const ReadQuestion& question, std::span<const float> keys) {
  std::vector<double> logits;
  for (std::int64_t t = 0; t < question.n_rows; ++t) {
    const auto key = row_of(keys, t, question.layout.head_dim);
    double sum = 0.0;
    for (std::size_t i = 0; i < key.size(); ++i)
      sum += static_cast<double>(question.query[i]) * static_cast<double>(key[i]);
    logits.push_back(sum * question.scale);
  }
  return logits;
}

double log_sum(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

std::vector<double> weights_of(std::vector<double> logits) {
  const double total = log_sum(logits);
  for (double& x : logits) x = std::exp(x - total);
  return logits;
}

/// What other weights, and other values, do to the output.
void add_output(const ReadQuestion& question, const std::vector<double>& exact,
                const std::vector<double>& used, ReadCertificate& certificate) {
  certificate.change.assign(static_cast<std::size_t>(question.value_dim), 0.0);
  double of_values = 0.0;
  for (std::size_t t = 0; t < exact.size(); ++t) {
    const auto row = static_cast<std::int64_t>(t);
    const auto value = row_of(question.values, row, question.value_dim);
    const auto other = question.used_values.empty()
                           ? value
                           : row_of(question.used_values, row, question.value_dim);
    double square = 0.0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const double moved = static_cast<double>(other[i]) - static_cast<double>(value[i]);
      certificate.change[i] +=
          (used[t] - exact[t]) * static_cast<double>(value[i]) + used[t] * moved;
      square += moved * moved;
    }
    of_values += used[t] * std::sqrt(square);
  }
  certificate.change_bound =
      output_change(certificate.bound, question.radius, of_values * (1.0 + 1e-12));
}

/// The mean of the dropped rows, and of every band the farthest that one of them lies from
/// `center`.
struct Spread {
  std::vector<float> center;
  BandEdit farthest;
};
Spread spread_of(const ReadQuestion& question, std::span<const float> keys,
                 const std::vector<bool>& dropped, bool centred) {
  const int dim = question.layout.head_dim;
  Spread spread{std::vector<float>(static_cast<std::size_t>(dim), 0.0f), {}};
  double n = 0.0;
  for (std::int64_t t = 0; centred && t < question.n_rows; ++t) {
    if (!dropped[static_cast<std::size_t>(t)]) continue;
    n += 1.0;
    const auto key = row_of(keys, t, dim);
    for (std::size_t i = 0; i < key.size(); ++i)
      spread.center[i] += static_cast<float>(
          (static_cast<double>(key[i]) - static_cast<double>(spread.center[i])) / n);
  }
  spread.farthest.band.assign(static_cast<std::size_t>(question.layout.n_bands()), 0.0);
  for (std::int64_t t = 0; t < question.n_rows; ++t) {
    if (!dropped[static_cast<std::size_t>(t)]) continue;
    const BandEdit away = edit_between(question.layout, spread.center, row_of(keys, t, dim));
    for (std::size_t b = 0; b < away.band.size(); ++b)
      spread.farthest.band[b] = std::max(spread.farthest.band[b], away.band[b]);
    spread.farthest.unrotated = std::max(spread.farthest.unrotated, away.unrotated);
  }
  return spread;
}

/// No dropped row's logit is above it.
double largest_dropped(const ReadQuestion& question, std::span<const float> keys,
                       const std::vector<bool>& dropped) {
  double least = std::numeric_limits<double>::infinity();
  for (const bool centred : {false, true}) {
    const Spread spread = spread_of(question, keys, dropped, centred);
    double at_center = 0.0;
    for (std::size_t i = 0; i < spread.center.size(); ++i)
      at_center += static_cast<double>(question.query[i]) * static_cast<double>(spread.center[i]);
    const double away = edit_bound(question.layout, question.query, spread.farthest);
    const double center = question.scale * at_center;
    const double bound = center + std::abs(question.scale) * away;
    least = std::min(least, bound + 1e-12 * (1.0 + std::abs(center) + std::abs(bound)));
  }
  return least;
}

}  // namespace

ReadCertificate certify_edit(const ReadQuestion& question, std::span<const float> keys,
                             std::span<const float> edited) {
  const std::vector<double> exact = weights_of(logits_of(question, keys));
  const std::vector<double> used = weights_of(logits_of(question, edited));
  const int dim = question.layout.head_dim;
  std::vector<double> eps;
  for (std::int64_t t = 0; t < question.n_rows; ++t) {
    const BandEdit edit =
        edit_between(question.layout, row_of(keys, t, dim), row_of(edited, t, dim));
    eps.push_back(std::abs(question.scale) * edit_bound(question.layout, question.query, edit));
  }
  ReadCertificate certificate;
  for (std::size_t t = 0; t < exact.size(); ++t)
    certificate.variation += std::abs(exact[t] - used[t]) / 2.0;
  const double largest = *std::max_element(eps.begin(), eps.end());
  const double least = std::min({uniform_variation(largest), weighted_variation(used, eps), 1.0});
  certificate.bound = least > 0.0 ? least + 1e-12 : 0.0;  // rounding of the sums here
  add_output(question, exact, used, certificate);
  return certificate;
}

ReadCertificate certify_eviction(const ReadQuestion& question, std::span<const float> keys,
                                 const std::vector<bool>& dropped) {
  const std::vector<double> logits = logits_of(question, keys);
  const std::vector<double> exact = weights_of(logits);
  std::vector<double> kept, used = exact;
  double share = 0.0;
  for (std::size_t t = 0; t < logits.size(); ++t) {
    if (!dropped[t]) kept.push_back(logits[t]);
    share += dropped[t] ? exact[t] : 0.0;
    if (dropped[t]) used[t] = 0.0;
  }
  ReadCertificate certificate;
  if (kept.empty() || kept.size() == logits.size()) {  // nothing is left, or nothing is gone
    certificate.variation = certificate.bound = kept.empty() ? 1.0 : 0.0;
    certificate.change.assign(static_cast<std::size_t>(question.value_dim), 0.0);
    certificate.change_bound = output_change(certificate.bound, question.radius, 0.0);
    return certificate;
  }
  // What is kept takes the place of what is gone; its own sum is exact even where little is left.
  const std::vector<double> renormalised = weights_of(kept);
  for (std::size_t t = 0, i = 0; t < used.size(); ++t) {
    if (!dropped[t]) used[t] = renormalised[i++];
  }
  certificate.variation = share;
  const auto n = static_cast<std::int64_t>(logits.size() - kept.size());
  const double limit = evicted_share(n, largest_dropped(question, keys, dropped), log_sum(kept));
  certificate.bound = std::min(1.0, limit * (1.0 + 1e-12));
  add_output(question, exact, used, certificate);
  return certificate;
}

}  // namespace volvelle
