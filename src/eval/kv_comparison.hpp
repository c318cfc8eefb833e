// Key and value rows of two runs of the same chunk, compared layer by layer while the second run
// computes them.
//
//   relative L2 of a layer's K (or V) rows = ||candidate - reference|| / ||reference||
//
// The sharpest of all drift measures: it names no position, but an error of one row shows before it
// reaches any logit. Memory: the reference rows of one chunk, in f32. The sinks allocate nothing
// and never throw; what does not fit is remembered and reported by worst_relative_l2().
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "volvelle/base/result.hpp"
#include "volvelle/memory/kv_store.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {

class KvComparison {
 public:
  KvComparison(const std::vector<LayerShape>& layers, std::int64_t max_tokens);
  KvComparison(const KvComparison&) = delete;  // the sinks point here
  KvComparison& operator=(const KvComparison&) = delete;

  CaptureSink reference_sink();  // keeps the rows
  CaptureSink candidate_sink();  // compares them with those kept

  /// What the sinks see from now on belongs to positions [first, first + n_tokens), n_tokens <=
  /// max_tokens.
  void begin(Position first, std::int64_t n_tokens);
  /// While paused, the sinks look away.
  void pause() noexcept { active_ = false; }

  /// The largest of all layers' K and V. An error if a layer's rows were seen in one run only, or
  /// in part.
  Result<double> worst_relative_l2() const;

 private:
  struct Plane {  // K or V of one layer
    std::int64_t n_heads = 0;
    std::int64_t head_dim = 0;
    std::vector<float> reference;  // [max_tokens, n_heads, head_dim]
    std::int64_t n_reference = 0;  // tokens seen
    std::int64_t n_candidate = 0;
    double sum_squares = 0;  // of the reference rows that were compared
    double sum_squared_delta = 0;
  };
  Plane* plane_for(const CapturedRows& rows) noexcept;
  void keep(const CapturedRows& rows) noexcept;
  void compare(const CapturedRows& rows) noexcept;

  std::vector<std::array<Plane, 2>> layers_;  // {K, V}
  Position first_;
  std::int64_t n_tokens_ = 0;
  bool active_ = false;
  bool misfit_ = false;
};

}  // namespace volvelle
