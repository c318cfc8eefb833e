// Complex second moments of bands, multiplied by the characteristic function of the positions.
#include "index/rotation_average.hpp"

#include <cmath>
#include <complex>

namespace volvelle {
namespace {

using Complex = std::complex<double>;

/// E[exp(i w p)] over the range.
Complex characteristic(double w, PositionRange positions) {
  const auto n = static_cast<double>(positions.n);
  const double half = std::sin(w / 2.0);
  const double amplitude = std::abs(half) < 1e-15 ? 1.0 : std::sin(w * n / 2.0) / (n * half);
  const double phase = w * (static_cast<double>(positions.start) + (n - 1.0) / 2.0);
  return std::polar(1.0, phase) * amplitude;
}

struct Bands {
  std::size_t m;
  PairLayout layout;
  std::size_t x(std::size_t b) const { return layout == PairLayout::kHalves ? b : 2 * b; }
  std::size_t y(std::size_t b) const { return layout == PairLayout::kHalves ? b + m : 2 * b + 1; }
};

}  // namespace

std::vector<double> rotation_average(std::span<const double> moment, std::span<const double> theta,
                                     PairLayout layout, PositionRange positions) {
  const Bands bands{theta.size(), layout};
  const std::size_t dim = 2 * bands.m;
  std::vector<double> out(dim * dim);
  for (std::size_t b = 0; b < bands.m; ++b) {
    for (std::size_t c = 0; c < bands.m; ++c) {
      const double xx = moment[bands.x(b) * dim + bands.x(c)];
      const double yy = moment[bands.y(b) * dim + bands.y(c)];
      const double xy = moment[bands.x(b) * dim + bands.y(c)];
      const double yx = moment[bands.y(b) * dim + bands.x(c)];
      const Complex x = Complex(xx + yy, yx - xy) * characteristic(theta[b] - theta[c], positions);
      const Complex y = Complex(xx - yy, xy + yx) * characteristic(theta[b] + theta[c], positions);
      out[bands.x(b) * dim + bands.x(c)] = (x + y).real() / 2.0;
      out[bands.y(b) * dim + bands.y(c)] = (x - y).real() / 2.0;
      out[bands.x(b) * dim + bands.y(c)] = (y - x).imag() / 2.0;
      out[bands.y(b) * dim + bands.x(c)] = (x + y).imag() / 2.0;
    }
  }
  return out;
}

std::vector<double> rotation_average_mean(std::span<const double> mean,
                                          std::span<const double> theta, PairLayout layout,
                                          PositionRange positions) {
  const Bands bands{theta.size(), layout};
  std::vector<double> out(2 * bands.m);
  for (std::size_t b = 0; b < bands.m; ++b) {
    const Complex z =
        Complex(mean[bands.x(b)], mean[bands.y(b)]) * characteristic(theta[b], positions);
    out[bands.x(b)] = z.real();
    out[bands.y(b)] = z.imag();
  }
  return out;
}

}  // namespace volvelle
