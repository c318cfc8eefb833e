// One KV head after the other: its keys are edited, its group's queries ask, at their own positions
// and turned to later ones, since a bound that holds at all positions must hold there too.
#include "eval/edit_study.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.hpp"
#include "base/result_macros.hpp"
#include "bounds/weight_variation.hpp"
#include "eval/head_capture.hpp"
#include "eval/head_weights.hpp"
#include "eval/key_edits.hpp"
#include "eval/model_rotation.hpp"
#include "eval/read_certificates.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kSinks = 4;
constexpr std::int64_t kFarthest = 100000;
constexpr const char* kPaths[] = {"f32", "bf16"};

/// Queries of one KV head's group at late positions and turned to others.
struct AskedQueries {
  std::vector<float> rows;        // [n, dim], as they are multiplied
  std::vector<float> lengths_of;  // [n, dim], at their own positions
  std::vector<std::int64_t> positions;
  std::vector<int> heads;  // of the group
};

AskedQueries ask(const HeadSample& sample, const RotationGroup& rotation, bool rounded,
                 const EditStudyOptions& options) {
  AskedQueries asked;
  std::mt19937_64 random(options.seed);
  const std::int64_t late = sample.n / 2;
  for (int g = 0; g < sample.group; ++g) {
    for (std::int64_t i = 0; i < options.queries; ++i) {
      const std::int64_t t = sample.n - 1 - i * late / options.queries;
      for (int turn = 0; turn <= options.turns; ++turn) {
        const std::int64_t by =
            turn == 0 ? 0
                      : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kFarthest));
        std::vector<float> row(sample.query(g, t), sample.query(g, t) + sample.dim);
        asked.lengths_of.insert(asked.lengths_of.end(), row.begin(), row.end());
        turn_row(rotation, by, rounded, row.data());
        if (rounded) round_to_bfloat(row);
        asked.rows.insert(asked.rows.end(), row.begin(), row.end());
        asked.positions.push_back(t + by);
        asked.heads.push_back(g);
      }
    }
  }
  return asked;
}

class Study {
 public:
  Study(const EditStudyOptions& options, const MemorySpec& spec) : options_(options), spec_(spec) {
    for (const char* edit : edit_names()) {
      for (const char* path : kPaths) study_.rows.push_back({edit, path, {}});
      study_.weights.push_back({edit, {}, 0.0, 0.0});
    }
    study_.weights.push_back({"evict", {}, 0.0, 0.0});
    study_.controls = {{"half of the edit, single bands", {}},
                       {"bands paired wrongly, single bands", {}},
                       {"no slack for rounding, single bands in bf16", {}}};
  }

  void add_layer(int layer, const std::vector<HeadSample>& samples, const RotationGroup& rotation,
                 const std::vector<QueryFactor>& factors) {
    for (std::size_t kv = 0; kv < samples.size(); ++kv) {
      const HeadSample& sample = samples[kv];
      const BandLayout layout{rotation.node.layout, sample.dim, rotation.node.rotated_dims};
      seed_ = options_.seed + static_cast<std::uint64_t>(layer) * 131 + kv;
      const AskedQueries exact = ask(sample, rotation, false, options_);
      const AskedQueries rounded = ask(sample, rotation, true, options_);
      for (std::size_t i = 0; i < study_.rows.size(); ++i) {
        const bool in_bfloat = study_.rows[i].path == kPaths[1];
        audit(sample, layout, in_bfloat ? rounded : exact, in_bfloat, study_.rows[i]);
      }
      add_weights(sample, layout, exact);
      if (factors.empty()) continue;
      add_factors(sample, layout, exact,
                  std::span(factors).subspan(kv * static_cast<std::size_t>(sample.group),
                                             static_cast<std::size_t>(sample.group)));
    }
  }

  EditStudy finish(double seconds, std::vector<std::string> notes) {
    for (WeightStudyRow& row : study_.weights) {
      const auto n = static_cast<double>(std::max<std::int64_t>(row.found.n, 1));
      row.mean_variation /= n;
      row.mean_bound /= n;
    }
    study_.seconds = seconds;
    study_.notes = std::move(notes);
    return std::move(study_);
  }

 private:
  void audit(const HeadSample& sample, const BandLayout& layout, const AskedQueries& asked,
             bool in_bfloat, EditStudyRow& row) {
    std::vector<float> stored = sample.keys;
    if (in_bfloat) round_to_bfloat(stored);
    std::vector<int> bands;
    std::vector<float> edited = edited_keys(row.edit, layout, stored, seed_, bands);
    if (in_bfloat) round_to_bfloat(edited);
    std::vector<std::int64_t> positions(static_cast<std::size_t>(sample.n));
    for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<std::int64_t>(t);
    EditAuditTask task{layout, asked.rows,      asked.lengths_of, stored,
                       edited, asked.positions, positions};
    task.edited_bands = bands;
    task.query_slack = in_bfloat ? kBfloatTurn : kFloatTurn;
    audit_edits(task, row.found);
    if (bands.empty()) return;
    if (in_bfloat)
      return add_control(
          2, [&] { task.rounding = false; }, task);
    add_control(
        0, [&] { task.edit_factor = 0.5; }, task);
    task.edit_factor = 1.0;
    add_control(
        1,
        [&] {
          task.layout.layout = layout.layout == RopeLayout::kHalfSplit ? RopeLayout::kAdjacentPairs
                                                                       : RopeLayout::kHalfSplit;
        },
        task);
  }

  template <class Break>
  void add_control(std::size_t i, Break break_it, EditAuditTask& task) {
    break_it();
    EditAuditFindings findings;
    audit_edits(task, findings);
    study_.controls[i].found.merge(findings.ratios.all);
  }

  /// Certificates of whole reads, at the queries' own positions.
  void add_weights(const HeadSample& sample, const BandLayout& layout, const AskedQueries& asked) {
    for (WeightStudyRow& row : study_.weights) {
      std::vector<int> bands;
      const bool evicts = row.edit == "evict";
      const std::vector<float> edited =
          evicts ? std::vector<float>() : edited_keys(row.edit, layout, sample.keys, seed_, bands);
      for (std::size_t i = 0; i < asked.heads.size();
           i += static_cast<std::size_t>(options_.turns) + 1) {
        const ReadQuestion question{layout,
                                    std::span(asked.rows)
                                        .subspan(i * static_cast<std::size_t>(sample.dim),
                                                 static_cast<std::size_t>(sample.dim)),
                                    asked.positions[i] + 1, sample.scale};
        const ReadCertificate found =
            evicts ? certify_eviction(question, sample.keys, dropped_rows(question.n_rows))
                   : certify_edit(question, sample.keys, edited);
        row.found.add(change_ratio(found.variation, found.bound));
        row.mean_variation += found.variation;
        row.mean_bound += found.bound;
      }
    }
  }

  /// Rows that a read of `n` rows would not see.
  std::vector<bool> dropped_rows(std::int64_t n) const {
    std::vector<bool> dropped(static_cast<std::size_t>(n), false);
    const std::int64_t begin = window_begin(spec_, n - 1);
    const std::int64_t sinks = spec_.sink.value_or(0);
    for (std::int64_t t = kSinks; t < n; ++t) {
      dropped[static_cast<std::size_t>(t)] =
          spec_.keeps_everything() ? t % 2 == 0 && t + 64 < n : t >= sinks && t < begin;
    }
    return dropped;
  }

  /// Bounds that were known from the weights alone, for some keys and all queries.
  void add_factors(const HeadSample& sample, const BandLayout& layout, const AskedQueries& asked,
                   std::span<const QueryFactor> factors) {
    const auto dim = static_cast<std::size_t>(sample.dim);
    for (int g = 0; g < sample.group; ++g) {
      const QueryFactor& factor = factors[static_cast<std::size_t>(g)];
      for (std::int64_t t = 0; t < sample.n; ++t) {
        for (int b = 0; b < layout.n_bands(); ++b) {
          const float* const q = sample.query(g, t);
          study_.query_lengths.add(
              change_ratio(std::hypot(static_cast<double>(q[layout.first(b)]),
                                      static_cast<double>(q[layout.second(b)])),
                           factor.band[static_cast<std::size_t>(b)]));
        }
      }
    }
    for (const char* edit : edit_names()) {
      std::vector<int> bands;
      const std::vector<float> edited = edited_keys(edit, layout, sample.keys, seed_, bands);
      for (std::int64_t t = kSinks; t < sample.n; t += std::max<std::int64_t>(1, sample.n / 16)) {
        const auto from = static_cast<std::size_t>(t) * dim;
        const std::span<const float> key(sample.keys.data() + from, dim);
        const std::span<const float> other(edited.data() + from, dim);
        const BandEdit change = edit_between(layout, key, other);
        std::vector<double> bounds;
        for (const QueryFactor& factor : factors) bounds.push_back(edit_bound(factor, change));
        for (std::size_t i = 0; i < asked.heads.size(); ++i) {
          double moved = 0.0;
          for (std::size_t x = 0; x < dim; ++x)
            moved += static_cast<double>(asked.rows[i * dim + x]) *
                     (static_cast<double>(other[x]) - static_cast<double>(key[x]));
          const double bound = bounds[static_cast<std::size_t>(asked.heads[i])];
          study_.from_weights.add(change_ratio(std::abs(moved), bound));
        }
      }
    }
  }

  const EditStudyOptions& options_;
  const MemorySpec& spec_;
  std::uint64_t seed_ = 0;
  EditStudy study_;
};

}  // namespace

Result<EditStudy> run_edit_study(const Model& model, std::span<const TokenId> tokens,
                                 const MemorySpec& spec, const EditStudyOptions& options,
                                 const ProgressSink& progress) {
  if (std::ssize(tokens) < 256 || options.queries < 1 || options.turns < 0 ||
      options.queries > std::ssize(tokens) / 2) {
    return Error{ErrorCode::kInvalidArgument,
                 "audit: expected 256 tokens or more, and queries up to half of them"};
  }
  VOLVELLE_ASSIGN_OR_RETURN(const ModelRotations rotations, model_rotations(model));
  VOLVELLE_ASSIGN_OR_RETURN(const ModelWeights weights, ModelWeights::open(model));
  ProgressMeter meter(progress, "capture", "tokens", std::ssize(tokens));
  VOLVELLE_ASSIGN_OR_RETURN(const LayerSamples layers,
                            capture_heads(model, tokens, options.session, meter));
  std::vector<std::string> notes = rotations.notes;
  Study study(options, spec);
  ProgressMeter audited(progress, "audit", "layers", std::ssize(layers));
  const auto start = Clock::now();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (options.session.cancel.cancelled())
      return Error{ErrorCode::kCancelled, "audit: interrupted"};
    const auto layer = static_cast<int>(i);
    audited.add(1);
    const RotationGroup* const rotation = rotations.of(layer);
    if (layers[i].empty() || rotation == nullptr) continue;
    Result<std::vector<QueryFactor>> factors = query_factors(model, weights, layer);
    if (!factors.ok()) notes.push_back(factors.error().message);
    study.add_layer(layer, layers[i], *rotation,
                    factors.ok() ? std::move(*factors) : std::vector<QueryFactor>());
  }
  return study.finish(seconds_since(start), std::move(notes));
}

}  // namespace volvelle
