// One KV head after the other: its keys are edited, its group's queries ask, at their own positions
// and turned to later ones, since a bound that holds at all positions must hold there too.
#include "eval/edit_study.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.hpp"
#include "base/result_macros.hpp"
#include "bounds/output_bound.hpp"
#include "eval/head_capture.hpp"
#include "eval/head_weights.hpp"
#include "eval/key_edits.hpp"
#include "eval/layer_outputs.hpp"
#include "eval/model_rotation.hpp"
#include "eval/query_bounds.hpp"
#include "eval/read_certificates.hpp"
#include "eval/spec_edit.hpp"
#include "index/head_bands.hpp"
#include "volvelle/memory/memory_index.hpp"

namespace volvelle {
namespace {

constexpr std::int64_t kFarthest = 100000;
constexpr const char* kPaths[] = {"f32", "bf16"};
constexpr const char* kOfMemory = "memory";  // rows as the spec keeps them

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

double length_of(std::span<const double> x) {
  double square = 0.0;
  for (const double value : x) square += value * value;
  return std::sqrt(square);
}

/// One layer to be studied.
struct LayerTask {
  int layer = 0;
  const std::vector<HeadSample>& samples;
  const RotationGroup& rotation;
  std::vector<QueryFactor> factors;  // or none
  OutputProjection output;           // or nothing
  bool plain = true;                 // attention weights are a softmax of nothing but products
};

class Study {
 public:
  Study(const EditStudyOptions& options, const MemorySpec& spec, const RopeConfig& rope)
      : options_(options),
        spec_(spec),
        rope_(rope),
        edits_(edit_names().begin(), edit_names().end()) {
    edits_.push_back(kOfMemory);
    for (const char* edit : edits_) {
      for (const char* path : kPaths) study_.rows.push_back({edit, path, {}});
      study_.weights.push_back({edit, {}, 0.0, 0.0, {}, {}});
    }
    study_.weights.push_back({"evict", {}, 0.0, 0.0, {}, {}});
    study_.controls = {{"half of the edit, single bands", {}},
                       {"bands paired wrongly, single bands", {}},
                       {"no slack for rounding, single bands in bf16", {}},
                       {"half of what a shift moves, band by band", {}}};
  }

  Status add_layer(const LayerTask& task) {
    const auto& [layer, samples, rotation, factors, output, plain] = task;
    changes_.assign(study_.weights.size(), {});
    coded_ = !spec_.dense_layers || layer < spec_.dense_layers->first ||
             layer > spec_.dense_layers->last;
    for (std::size_t kv = 0; kv < samples.size(); ++kv) {
      const HeadSample& sample = samples[kv];
      seed_ = options_.seed + static_cast<std::uint64_t>(layer) * 131 + kv;
      const AskedQueries exact = ask(sample, rotation, false, options_);
      const AskedQueries rounded = ask(sample, rotation, true, options_);
      for (std::size_t i = 0; i < study_.rows.size(); ++i) {
        const bool in_bfloat = study_.rows[i].path == kPaths[1];
        VOLVELLE_RETURN_IF_ERROR(
            audit(sample, rotation, in_bfloat ? rounded : exact, in_bfloat, study_.rows[i]));
      }
      if (plain)
        VOLVELLE_RETURN_IF_ERROR(
            add_weights(sample, static_cast<int>(kv), rotation, exact, output));
      if (factors.empty()) continue;
      VOLVELLE_RETURN_IF_ERROR(
          add_factors(sample, rotation, exact,
                      std::span(factors).subspan(kv * static_cast<std::size_t>(sample.group),
                                                 static_cast<std::size_t>(sample.group))));
    }
    for (std::size_t row = 0; row < changes_.size(); ++row) {
      for (const LayerChange& change : changes_[row])
        study_.weights[row].layers.add(
            change_ratio(length_of(change.sum), layer_change(change.norms, change.bounds)));
    }
    return {};
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
  Status audit(const HeadSample& sample, const RotationGroup& rotation, const AskedQueries& asked,
               bool in_bfloat, EditStudyRow& row) {
    const BandLayout layout = layout_of(rotation, sample.dim);
    std::vector<float> stored = sample.keys;
    if (in_bfloat) round_to_bfloat(stored);
    EditTrace trace;
    VOLVELLE_ASSIGN_OR_RETURN(const EditedRows rows,
                              edit(row.edit, sample, rotation, stored, trace));
    std::vector<float> edited = rows.keys;
    if (in_bfloat) round_to_bfloat(edited);
    std::vector<std::int64_t> positions(static_cast<std::size_t>(sample.n));
    for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<std::int64_t>(t);
    EditAuditTask task{layout, asked.rows,      asked.lengths_of, stored,
                       edited, asked.positions, positions};
    task.edited_bands = trace.bands;
    task.query_slack = in_bfloat ? kBfloatTurn : kFloatTurn;
    const std::vector<BandEdit> known =
        shift_edits(rotation, sample.dim, stored, trace.shifts, task.query_slack);
    task.known_edits = known;
    audit_edits(task, row.found);
    add_shifts(task);
    if (!trace.bands.empty()) add_controls(task, in_bfloat);
    return {};
  }

  /// What keys really moved, band by band, over what was known before they did.
  void add_shifts(const EditAuditTask& task) {
    const auto dim = static_cast<std::size_t>(task.layout.head_dim);
    for (std::size_t j = 0; j < task.known_edits.size(); ++j) {
      const BandEdit moved = edit_between(task.layout, task.stored.subspan(j * dim, dim),
                                          task.edited.subspan(j * dim, dim));
      for (std::size_t b = 0; b < moved.band.size(); ++b) {
        const double known = task.known_edits[j].band[b];
        study_.shifted_bands.add(change_ratio(moved.band[b], known));
        study_.controls[3].found.add(change_ratio(moved.band[b], 0.5 * known));
      }
    }
  }

  /// Bounds of edits of single bands, broken on purpose.
  void add_controls(EditAuditTask& task, bool in_bfloat) {
    if (in_bfloat) {
      add_control(
          2, [&] { task.rounding = false; }, task);
      return;
    }
    add_control(
        0, [&] { task.edit_factor = 0.5; }, task);
    task.edit_factor = 1.0;
    add_control(
        1,
        [&] {
          const bool halves = task.layout.layout == RopeLayout::kHalfSplit;
          task.layout.layout = halves ? RopeLayout::kAdjacentPairs : RopeLayout::kHalfSplit;
        },
        task);
  }

  /// Keys [n, dim] of a sample edited by name; values only by what the memory keeps.
  Result<EditedRows> edit(std::string_view name, const HeadSample& sample,
                          const RotationGroup& rotation, const std::vector<float>& keys,
                          EditTrace& trace) const {
    EditedRows rows;
    if (name != kOfMemory) {
      VOLVELLE_ASSIGN_OR_RETURN(rows.keys,
                                edited_keys(name, rotation, sample.dim, keys, seed_, trace));
      return rows;
    }
    HeadSample stored = sample;
    stored.keys = keys;
    return edited_rows(spec_, stored, rope_, coded_);
  }

  template <class Break>
  void add_control(std::size_t i, Break break_it, EditAuditTask& task) {
    break_it();
    EditAuditFindings findings;
    audit_edits(task, findings);
    study_.controls[i].found.merge(findings.ratios.all);
  }

  /// Certificates of whole reads, at the queries' own positions.
  Status add_weights(const HeadSample& sample, int kv, const RotationGroup& rotation,
                     const AskedQueries& asked, const OutputProjection& output) {
    const double radius = value_radius(sample.values, sample.value_dim);
    const auto step = static_cast<std::size_t>(options_.turns) + 1;
    std::vector<double> norms;
    for (int g = 0; g < sample.group && output.n_columns > 0; ++g)
      norms.push_back(spectral_norm(output.weight, output.n_columns,
                                    (kv * sample.group + g) * sample.value_dim, sample.value_dim));
    for (std::size_t edited_row = 0; edited_row < study_.weights.size(); ++edited_row) {
      WeightStudyRow& row = study_.weights[edited_row];
      EditTrace trace;
      const bool evicts = row.edit == "evict";
      EditedRows edited;
      if (!evicts) {
        VOLVELLE_ASSIGN_OR_RETURN(edited, edit(row.edit, sample, rotation, sample.keys, trace));
      }
      for (std::size_t i = 0; i < asked.heads.size(); i += step) {
        const ReadQuestion question{layout_of(rotation, sample.dim),
                                    std::span(asked.rows)
                                        .subspan(i * static_cast<std::size_t>(sample.dim),
                                                 static_cast<std::size_t>(sample.dim)),
                                    asked.positions[i] + 1,
                                    sample.scale,
                                    sample.values,
                                    sample.value_dim,
                                    radius,
                                    edited.values};
        const ReadCertificate found =
            evicts ? certify_eviction(question, sample.keys, dropped_rows(question.n_rows))
                   : certify_edit(question, sample.keys, edited.keys);
        row.found.add(change_ratio(found.variation, found.bound));
        row.mean_variation += found.variation;
        row.mean_bound += found.bound;
        row.outputs.add(change_ratio(length_of(found.change), found.change_bound));
        if (norms.empty()) continue;
        // Queries of every head are at the same positions.
        const auto at = i / step % static_cast<std::size_t>(options_.queries);
        changes_[edited_row].resize(static_cast<std::size_t>(options_.queries));
        const int g = asked.heads[i];
        add_head(output, kv * sample.group + g, found, norms[static_cast<std::size_t>(g)],
                 changes_[edited_row][at]);
      }
    }
    return {};
  }

  /// Rows that a read of `n` rows would not see.
  std::vector<bool> dropped_rows(std::int64_t n) const {
    std::vector<bool> dropped(static_cast<std::size_t>(n), false);
    const std::int64_t begin = window_begin(spec_, n - 1);
    const std::int64_t sinks = spec_.sink.value_or(0);
    for (std::int64_t t = 0; t < n; ++t) {
      const bool every_second = t >= kSinkTokens && t % 2 == 0 && t + 64 < n;
      dropped[static_cast<std::size_t>(t)] =
          spec_.keeps_everything() ? every_second : t >= sinks && t < begin;
    }
    return dropped;
  }

  /// Bounds that were known from the weights alone, for some keys and all queries.
  Status add_factors(const HeadSample& sample, const RotationGroup& rotation,
                     const AskedQueries& asked, std::span<const QueryFactor> factors) {
    const BandLayout layout = layout_of(rotation, sample.dim);
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
    for (const char* name : edits_) {
      EditTrace trace;
      VOLVELLE_ASSIGN_OR_RETURN(const EditedRows edited,
                                edit(name, sample, rotation, sample.keys, trace));
      for (std::int64_t t = kSinkTokens; t < sample.n;
           t += std::max<std::int64_t>(1, sample.n / 16)) {
        const auto from = static_cast<std::size_t>(t) * dim;
        const std::span<const float> key(sample.keys.data() + from, dim);
        const std::span<const float> other(edited.keys.data() + from, dim);
        const BandEdit change =
            trace.shifts.empty()
                ? edit_between(layout, key, other)
                : edit_of_shift(layout, rotation.bands, key,
                                trace.shifts[static_cast<std::size_t>(t)], kFloatTurn);
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
    return {};
  }

  const EditStudyOptions& options_;
  const MemorySpec& spec_;
  const RopeConfig& rope_;
  std::vector<const char*> edits_;  // names
  bool coded_ = true;               // whether the layer would have codes
  std::uint64_t seed_ = 0;
  std::vector<std::vector<LayerChange>> changes_;  // [weight row][query] of the layer
  EditStudy study_;
};

}  // namespace

namespace {

/// Refuses specs that the model does not take, and those whose reads are no edits of rows.
Status check_spec(const Model& model, std::int64_t n_tokens, const MemorySpec& spec,
                  SessionOptions options) {
  if (spec.topk) {
    VOLVELLE_ASSIGN_OR_RETURN(const IndexPlan plan, index_plan(spec));
    if (n_tokens < plan.min_tokens)
      return Error{ErrorCode::kInvalidArgument,
                   "audit: an index is made from " + std::to_string(plan.min_tokens) +
                       " tokens on, got " + std::to_string(n_tokens) + "; give more tokens"};
    if (!plan.policy.coded_tail)
      return Error{
          ErrorCode::kInvalidArgument,
          "audit: tail=none leaves rows out, which no bound of edits covers; leave it out"};
  }
  VOLVELLE_ASSIGN_OR_RETURN(options.kv, kv_types(spec));
  VOLVELLE_ASSIGN_OR_RETURN(const Session session, Session::create(model, options));
  const Result<ContextMemory> memory = session.begin(spec);
  return memory.ok() ? Status() : memory.error();
}

}  // namespace

Result<EditStudy> run_edit_study(const Model& model, std::span<const TokenId> tokens,
                                 const MemorySpec& spec, const EditStudyOptions& options,
                                 const ProgressSink& progress) {
  if (std::ssize(tokens) < 256 || options.queries < 1 || options.turns < 0 ||
      options.queries > std::ssize(tokens) / 2) {
    return Error{ErrorCode::kInvalidArgument,
                 "audit: expected 256 tokens or more, and queries up to half of them"};
  }
  VOLVELLE_RETURN_IF_ERROR(check_spec(model, std::ssize(tokens), spec, options.session));
  VOLVELLE_ASSIGN_OR_RETURN(const ModelRotations rotations, model_rotations(model));
  VOLVELLE_ASSIGN_OR_RETURN(const ModelWeights weights, ModelWeights::open(model));
  ProgressMeter meter(progress, "capture", "tokens", std::ssize(tokens));
  VOLVELLE_ASSIGN_OR_RETURN(const LayerSamples layers,
                            capture_heads(model, tokens, options.session, meter, true));
  std::vector<std::string> notes = rotations.notes;
  Study study(options, spec, model.info().rope);
  ProgressMeter audited(progress, "audit", "layers", std::ssize(layers));
  bool rounded = false;  // some weights are not F32
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
    if (factors.ok() && !weights.is_float32(query_paths(model)[i].weight)) rounded = true;
    const QueryPath& path = query_paths(model)[i];
    Result<OutputProjection> output = output_projection(model, weights, layer);
    if (!output.ok()) notes.push_back(output.error().message);
    VOLVELLE_RETURN_IF_ERROR(
        study.add_layer({layer, layers[i], *rotation,
                         factors.ok() ? std::move(*factors) : std::vector<QueryFactor>(),
                         output.ok() ? std::move(*output) : OutputProjection(),
                         !path.capped && !path.sink_logits}));
  }
  if (rounded) notes.push_back(kRoundedActivations);
  EditStudy found = study.finish(seconds_since(start), std::move(notes));
  found.weights_bind = !rounded;
  return found;
}

}  // namespace volvelle
