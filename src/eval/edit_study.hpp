// The audit of edit bounds: keys of real heads (or of random ones) edited in the ways that caches
// are compressed, every change of a score held against the bound that was known before any query
// (RoAM, audit protocol).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bounds/edit_audit.hpp"
#include "volvelle/base/progress.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

struct EditStudyOptions {
  std::int64_t queries = 8;  // late positions of each query head
  int turns = 2;             // further positions up to 1e5 that each is turned to
  std::uint64_t seed = 1;
  SessionOptions session;
};

/// One way of editing, with scores in float ("f32") or of rows and cosines rounded to bfloat16
/// ("bf16").
struct EditStudyRow {
  std::string edit;
  std::string path;
  EditAuditFindings found;
};
/// A bound that is broken on purpose, which the audit must notice.
struct EditControl {
  std::string name;
  RatioSummary found;
};
/// Certificates of the attention weights of a read.
struct WeightStudyRow {
  std::string edit;  // "q8_0", ..., or "evict"
  RatioSummary found;
  double mean_variation = 0.0;  // measured
  double mean_bound = 0.0;
  RatioSummary outputs;  // changes of heads' outputs over their bounds
  RatioSummary layers;   // changes of what layers add over theirs
};

struct EditStudy {
  std::vector<EditStudyRow> rows;
  std::vector<EditControl> controls;
  std::vector<WeightStudyRow> weights;
  RatioSummary from_weights;   // changes over bounds that rest on weights alone
  RatioSummary query_lengths;  // bands of queries over what the weights allow
  bool weights_bind = true;    // weights are F32, so that both of these must hold
  RatioSummary shifted_bands;  // of keys: how far each moved over what was known beforehand
  std::vector<std::string> notes;
  double seconds = 0.0;  // of the audit, without the capture
};

/// Reads the tokens exactly and audits edits of the keys of all layers without a window of their
/// own. The edit "memory" is what `spec` keeps of them: its storage types, and codes in place of
/// all rows that a late read may take from codes. Evicted are the rows that `spec` would drop, or
/// every second one if it drops none.
Result<EditStudy> run_edit_study(const Model& model, std::span<const TokenId> tokens,
                                 const MemorySpec& spec, const EditStudyOptions& options,
                                 const ProgressSink& progress);

}  // namespace volvelle
