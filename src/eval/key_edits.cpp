// Every edit is in the frame of the stored key, so one that moves keys (merging) counts in full.
#include "eval/key_edits.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "base/result_macros.hpp"
#include "index/codec_study.hpp"
#include "kernels/convert.hpp"
#include "volvelle/base/half.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kFarthestShift = 64;
constexpr const char* kEdits[] = {"q8_0", "q4_0", "low_rank", "merge", "single_band", "shift"};

float through_bfloat(float x) { return bf16_to_f32(f32_to_bf16(x)); }

/// A quarter of the coordinates, by principal components of the keys themselves.
Result<std::vector<float>> low_rank(std::span<const float> keys, int dim) {
  HeadSample sample;
  sample.dim = dim;
  sample.n = std::ssize(keys) / dim;
  sample.keys.assign(keys.begin(), keys.end());
  StudyMoments moments = study_moments(sample, sample.n - 4, false);
  moments.plain_query_moment = moments.key_covariance;  // not looked at
  VOLVELLE_ASSIGN_OR_RETURN(const StudyMap map,
                            make_study_map(StudyCodec::kPrincipal, moments, std::max(1, dim / 4)));
  return through_map(map, moments, keys);
}

std::vector<float> merged(std::span<const float> keys, int dim) {
  std::vector<float> out(keys.begin(), keys.end());
  const auto d = static_cast<std::size_t>(dim);
  for (std::size_t at = 0; at + 2 * d <= out.size(); at += 2 * d) {
    for (std::size_t i = at; i < at + d; ++i) out[i] = out[i + d] = 0.5f * (out[i] + out[i + d]);
  }
  return out;
}

/// Each key in one band, by three tenths of the band's length in a random direction.
std::vector<float> in_single_bands(const BandLayout& layout, std::span<const float> keys,
                                   std::uint64_t seed, std::vector<int>& bands) {
  std::vector<float> out(keys.begin(), keys.end());
  std::mt19937_64 random(seed);
  const auto n = std::ssize(keys) / layout.head_dim;
  for (std::ptrdiff_t j = 0; j < n; ++j) {
    const int band = static_cast<int>(j % layout.n_bands());
    float& x = out[static_cast<std::size_t>(j * layout.head_dim + layout.first(band))];
    float& y = out[static_cast<std::size_t>(j * layout.head_dim + layout.second(band))];
    const float angle = static_cast<float>(random() >> 40) * 0x1p-24f * 6.2831853f;
    const float size = 0.3f * std::hypot(x, y);
    x += size * std::cos(angle);
    y += size * std::sin(angle);
    bands.push_back(band);
  }
  return out;
}

}  // namespace

std::vector<float> through_type(std::span<const float> rows, int dim, ElementType type) {
  std::vector<float> out(rows.size());
  std::vector<std::byte> stored(row_bytes(type, dim));
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(dim)) {
    convert_row(rows.data() + at, stored.data(), type, dim);
    load_row(stored.data(), type, out.data() + at, dim);
  }
  return out;
}

void turn_row(const RotationGroup& rotation, std::int64_t by, bool rounded, float* row) {
  if (by == 0) return;
  const std::size_t m = rotation.bands.size();
  const bool halves = rotation.node.layout == RopeLayout::kHalfSplit;
  for (std::size_t b = 0; b < m; ++b) {
    const double angle = rotation.bands.angle(b, static_cast<std::uint64_t>(by));
    float c = static_cast<float>(std::cos(angle));
    float s = static_cast<float>(std::sin(angle));
    if (rounded) c = through_bfloat(c), s = through_bfloat(s);
    float& x = halves ? row[b] : row[2 * b];
    float& y = halves ? row[b + m] : row[2 * b + 1];
    const float turned = c * x - s * y;
    y = s * x + c * y;
    x = turned;
  }
}

void round_to_bfloat(std::span<float> values) {
  for (float& x : values) x = through_bfloat(x);
}

std::span<const char* const> edit_names() noexcept { return kEdits; }

Result<std::vector<float>> edited_keys(std::string_view edit, const BandLayout& layout,
                                       std::span<const float> keys, std::uint64_t seed,
                                       std::vector<int>& bands) {
  const int dim = layout.head_dim;
  if (edit == "q8_0") return through_type(keys, dim, ElementType::kQ8_0);
  if (edit == "q4_0") return through_type(keys, dim, ElementType::kQ4_0);
  if (edit == "low_rank") return low_rank(keys, dim);
  if (edit == "merge") return merged(keys, dim);
  if (edit == "single_band") return in_single_bands(layout, keys, seed, bands);
  return Error{ErrorCode::kInvalidArgument, "edit of keys: no edit '" + std::string(edit) + "'"};
}

Result<std::vector<float>> edited_keys(std::string_view edit, const RotationGroup& rotation,
                                       int dim, std::span<const float> keys, std::uint64_t seed,
                                       EditTrace& trace) {
  if (edit != "shift") return edited_keys(edit, layout_of(rotation, dim), keys, seed, trace.bands);
  std::vector<float> out(keys.begin(), keys.end());
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < out.size(); at += static_cast<std::size_t>(dim)) {
    trace.shifts.push_back(
        1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kFarthestShift)));
    turn_row(rotation, trace.shifts.back(), false, out.data() + at);
  }
  return out;
}

std::vector<BandEdit> shift_edits(const RotationGroup& rotation, int dim,
                                  std::span<const float> keys, std::span<const std::int64_t> shifts,
                                  double turn_error) {
  const auto width = static_cast<std::size_t>(dim);
  std::vector<BandEdit> edits;
  edits.reserve(shifts.size());
  for (std::size_t j = 0; j < shifts.size(); ++j)
    edits.push_back(edit_of_shift(layout_of(rotation, dim), rotation.bands,
                                  keys.subspan(j * width, width), shifts[j], turn_error));
  return edits;
}

}  // namespace volvelle
