// Bounds of edits on many random heads: keys edited before they are turned to their positions (up
// to 100,000) or turned to others, in float and in bfloat16. Nothing exceeds a bound with slack;
// bounds that are broken on purpose are exceeded. VOLVELLE_FULL=1 runs the 115 million changes of
// the paper's audit.
#include "bounds/edit_audit.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "rope/frequencies.hpp"
#include "volvelle/base/half.hpp"

namespace volvelle {
namespace {

constexpr int kDim = 64;
constexpr int kQueries = 64;
constexpr int kKeys = 512;
const BandLayout kLayout{RopeLayout::kHalfSplit, kDim, kDim};

constexpr int kFarthestShift = 64;

enum class Edit { kGrid8, kGrid4, kProjection, kMerge, kSingleBand, kShift, kShiftOfSingleBand };

/// A random head and an edit of its keys.
struct Head {
  std::vector<float> queries, lengths_of, stored, edited, unturned, unturned_edited;
  std::vector<std::int64_t> query_positions, key_positions;
  std::vector<int> bands;
  std::vector<BandEdit> known;  // of shifts, from the keys before they were turned
};

class HeadMaker {
 public:
  HeadMaker(unsigned seed, bool in_bfloat)
      : random_(seed), in_bfloat_(in_bfloat), bands_(frequencies(seed)) {}

  Head make(Edit edit) {
    Head head;
    std::vector<float> profile(kDim / 2);
    for (float& size : profile) size = std::exp(normal_(random_));
    for (int i = 0; i < kKeys; ++i) {
      const auto key = row(profile);
      head.unturned.insert(head.unturned.end(), key.begin(), key.end());
      head.key_positions.push_back(position());
    }
    head.unturned_edited = head.unturned;
    std::vector<std::int64_t> moved_to = head.key_positions;
    if (edit == Edit::kShift || edit == Edit::kShiftOfSingleBand) {
      shift(edit == Edit::kShiftOfSingleBand, head, moved_to);
    } else {
      apply(edit, head);
    }
    head.stored = turned(head.unturned, head.key_positions);
    head.edited = turned(head.unturned_edited, moved_to);
    for (int i = 0; i < kQueries; ++i) {
      const auto query = row(profile);
      head.lengths_of.insert(head.lengths_of.end(), query.begin(), query.end());
      head.query_positions.push_back(position());
    }
    head.queries = turned(head.lengths_of, head.query_positions);
    return head;
  }

 private:
  static BandFrequencies frequencies(unsigned seed) {
    const double bases[] = {1e4, 1e5, 5e5, 1e6, 1e7};
    return band_frequencies({.rotated_dims = kDim, .base = bases[seed % 5]}).value();
  }
  std::int64_t position() { return static_cast<std::int64_t>(random_() % 100000); }
  float rounded(float x) const { return in_bfloat_ ? bf16_to_f32(f32_to_bf16(x)) : x; }

  std::vector<float> row(const std::vector<float>& profile) {
    std::vector<float> x(kDim);
    for (int i = 0; i < kDim; ++i)
      x[static_cast<std::size_t>(i)] =
          normal_(random_) * profile[static_cast<std::size_t>(i % (kDim / 2))];
    return x;
  }

  /// The same keys up to 64 positions later.
  void shift(bool single_bands, Head& head, std::vector<std::int64_t>& positions) {
    for (std::size_t j = 0; j < kKeys; ++j) {
      const std::span key = std::span(head.unturned).subspan(j * kDim, kDim);
      const int only = static_cast<int>(j) % kLayout.n_bands();
      if (single_bands) head.bands.push_back(only);
      for (int i = 0; single_bands && i < kDim; ++i) {
        if (i != kLayout.first(only) && i != kLayout.second(only))
          key[static_cast<std::size_t>(i)] = 0.0f;
      }
      const auto by = static_cast<std::int64_t>(1 + random_() % kFarthestShift);
      positions[j] += by;
      // Both turns round: the audit's slack of keys has that.
      head.known.push_back(edit_of_shift(kLayout, bands_, key, by, 0.0));
    }
    head.unturned_edited = head.unturned;
  }

  void apply(Edit edit, Head& head) {
    auto& keys = head.unturned_edited;
    for (int j = 0; j < kKeys; ++j) {
      float* const key = keys.data() + j * kDim;
      if (edit == Edit::kSingleBand) {
        const int band = j % kLayout.n_bands();
        head.bands.push_back(band);
        key[kLayout.first(band)] += 0.5f * normal_(random_);
        key[kLayout.second(band)] += 0.5f * normal_(random_);
      } else if (edit == Edit::kMerge) {
        if (j % 2 == 1) continue;
        for (int i = 0; i < kDim; ++i) key[i] = key[kDim + i] = 0.5f * (key[i] + key[kDim + i]);
      } else if (edit == Edit::kProjection) {
        for (int i = kDim / 4; i < kDim; ++i) key[i] = 0.0f;
      } else {
        const float steps = edit == Edit::kGrid8 ? 127.0f : 7.0f;
        float top = 0.0f;
        for (int i = 0; i < kDim; ++i) top = std::max(top, std::abs(key[i]));
        for (int i = 0; i < kDim; ++i) key[i] = std::round(key[i] / top * steps) * top / steps;
      }
    }
  }

  std::vector<float> turned(const std::vector<float>& rows,
                            const std::vector<std::int64_t>& positions) const {
    std::vector<float> out = rows;
    for (std::size_t j = 0; j < positions.size(); ++j) {
      float* const x = out.data() + j * kDim;
      for (int b = 0; b < kLayout.n_bands(); ++b) {
        const double angle =
            bands_.angle(static_cast<std::size_t>(b), static_cast<std::uint64_t>(positions[j]));
        const float c = rounded(static_cast<float>(std::cos(angle)));
        const float s = rounded(static_cast<float>(std::sin(angle)));
        float& u = x[kLayout.first(b)];
        float& v = x[kLayout.second(b)];
        const float first = rounded(c * u - s * v);
        v = rounded(s * u + c * v);
        u = first;
      }
    }
    return out;
  }

  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  bool in_bfloat_;
  BandFrequencies bands_;
};

EditAuditTask task_of(const Head& head, bool in_bfloat) {
  EditAuditTask task{kLayout,     head.queries,         head.lengths_of,   head.stored,
                     head.edited, head.query_positions, head.key_positions};
  task.edited_bands = head.bands;
  task.query_slack = task.key_slack = in_bfloat ? kBfloatTurn : kFloatTurn;
  task.unturned = head.unturned;
  task.unturned_edited = head.unturned_edited;
  task.known_edits = head.known;
  return task;
}

RatioSummary audited(const EditAuditTask& task) {
  EditAuditFindings found;
  audit_edits(task, found);
  return found.ratios.all;
}

/// A control: bounds of half an edit.
RatioSummary halved(const Head& head, bool in_bfloat) {
  EditAuditTask task = task_of(head, in_bfloat);
  task.edit_factor = 0.5;
  return audited(task);
}
/// A control: bounds without slack for rounding.
RatioSummary without_slack(const Head& head, bool in_bfloat) {
  EditAuditTask task = task_of(head, in_bfloat);
  task.rounding = false;
  return audited(task);
}

TEST(EditAudit, NoChangeExceedsItsBound) {
  const bool full = std::getenv("VOLVELLE_FULL") != nullptr;
  const unsigned rounds = full ? 293 : 4;  // of 393,216 changes
  EditAuditFindings all;
  RatioSummary half, unslacked;
  const auto start = std::chrono::steady_clock::now();
  for (unsigned round = 0; round < rounds; ++round) {
    for (const bool in_bfloat : {false, true}) {
      HeadMaker maker(round, in_bfloat);
      for (const Edit edit : {Edit::kGrid8, Edit::kGrid4, Edit::kProjection, Edit::kMerge,
                              Edit::kSingleBand, Edit::kShift}) {
        const Head head = maker.make(edit);
        audit_edits(task_of(head, in_bfloat), all);
        if (edit != Edit::kSingleBand || round % 16 != 0) continue;
        half.merge(halved(head, in_bfloat));
        if (in_bfloat) unslacked.merge(without_slack(head, in_bfloat));
      }
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("changes", std::to_string(all.ratios.all.n));
  RecordProperty("seconds", std::to_string(seconds.count()));
  EXPECT_EQ(all.ratios.all.n, static_cast<std::int64_t>(rounds) * 2 * 6 * kQueries * kKeys);
  if (full) {
    EXPECT_GE(all.ratios.all.n, 115'000'000);
  }
  EXPECT_EQ(all.ratios.all.violations, 0);
  EXPECT_GT(half.violations, 0);
  EXPECT_GT(unslacked.violations, 0);
  EXPECT_GT(all.ratios.all.largest, 0.9);  // single bands come close
  EXPECT_LT(all.ratios.quantile(0.5), 0.3);
  // No position is in the bound, so ratios at all distances are alike.
  const auto& near = all.by_distance[12];
  const auto& far = all.by_distance[16];
  EXPECT_GT(near.n, 1000);
  EXPECT_NEAR(near.mean() / far.mean(), 1.0, 0.1);
}

TEST(EditAudit, BoundsThatAreBrokenOnPurposeAreFound) {
  RatioSummary half, half_shift, unslacked, wrong;
  for (unsigned round = 0; round < 3; ++round) {
    HeadMaker plain(round, false), rounded(round, true);
    const Head head = plain.make(Edit::kSingleBand);
    half.merge(halved(head, false));
    EditAuditTask task = task_of(head, false);
    task.layout.layout = RopeLayout::kAdjacentPairs;
    wrong.merge(audited(task));
    unslacked.merge(without_slack(rounded.make(Edit::kSingleBand), true));
    half_shift.merge(halved(plain.make(Edit::kShiftOfSingleBand), false));
  }
  EXPECT_GT(half.violations, 0);
  // Phases are random: of a cosine's sizes two thirds are above a half.
  EXPECT_GT(half_shift.violations, half_shift.n / 2);
  EXPECT_GT(wrong.violations, 0);
  EXPECT_GT(unslacked.violations, 0);
}

// Nothing but what was known before the keys were turned is in these bounds. Changes of single
// bands come up to them, in the fast bands, where slack for rounding is small beside the edit.
TEST(EditAudit, ShiftsStayWithinWhatWasKnownBeforehand) {
  EditAuditFindings exact, rounded;
  for (unsigned round = 0; round < 5; ++round) {
    for (const Edit edit : {Edit::kShift, Edit::kShiftOfSingleBand}) {
      HeadMaker plain(round, false), in_bfloat(round, true);
      audit_edits(task_of(plain.make(edit), false), exact);
      audit_edits(task_of(in_bfloat.make(edit), true), rounded);
    }
  }
  EXPECT_EQ(exact.ratios.all.violations, 0);
  EXPECT_EQ(rounded.ratios.all.violations, 0);
  EXPECT_GT(exact.by_band[0].largest, 0.999);
  EXPECT_GT(rounded.by_band[0].largest, 0.8);
}

TEST(EditAudit, WhatIsNotANumberIsAViolation) {
  HeadMaker maker(1, false);
  Head head = maker.make(Edit::kGrid8);
  head.edited[5] = std::nanf("");
  EXPECT_GT(audited(task_of(head, false)).violations, 0);
  head.edited = head.stored;
  head.unturned_edited = head.unturned;
  const RatioSummary none = audited(task_of(head, false));
  EXPECT_EQ(none.violations, 0);
  EXPECT_EQ(none.largest, 0.0);
}

TEST(EditAudit, QuantilesAreUpperEdges) {
  RatioHistogram ratios;
  for (int i = 1; i <= 100; ++i) ratios.add(i / 100.0 - 0.0005);
  EXPECT_NEAR(ratios.quantile(0.5), 0.5, 1e-12);
  EXPECT_NEAR(ratios.quantile(0.99), 0.99, 1e-12);
  ratios.add(1.5);
  EXPECT_EQ(ratios.all.violations, 1);
  EXPECT_EQ(ratios.quantile(1.0), 1.001);
}

}  // namespace
}  // namespace volvelle
