// The end of every row: learned sink, normalisation or change of base, and the check for NaN and
// infinity.
//
//   learned sink c:  state {0, c, 1} merged in, so m' = max(m, c), d' = d e^(m-m') + e^(c-m'), o' =
//   o e^(m-m') state output:    m_nat = float(m ln 2); what that rounding loses is moved into o and
//   d, so the state stays exact to
//                    float precision even where |m| is large
#include "attention/output.hpp"

#include <cmath>
#include <limits>

#include "attention/rows.hpp"
#include "kernels/scale_row.hpp"

namespace volvelle {
namespace {

struct Denominator {
  double m = 0.0;  // base 2, after the sink
  double d = 0.0;
  double shrink = 1.0;  // factor of o
};

Denominator with_sink(const AttendTask& task, int head, float m, float d) noexcept {
  if (task.sink_logits == nullptr) return {m, d, 1.0};
  const double sink = static_cast<double>(task.sink_logits[head]) / kLn2;
  if (d == 0.0f) return {sink, 1.0, 0.0};
  const double top = std::max<double>(m, sink);
  const double shrink = std::exp2(m - top);
  return {top, d * shrink + std::exp2(sink - top), shrink};
}

}  // namespace

bool write_output(const AttendTask& task, std::int64_t token, int head,
                  const RowState& state) noexcept {
  const AttentionShape& shape = task.shape;
  float* out = task.out + token * task.out_token_stride + head * task.out_head_stride;
  const bool wants_state = task.m != nullptr;
  const std::int64_t index = token * shape.n_heads + head;
  const bool sees_rows = state.d != 0.0f;  // also true for NaN
  if (!sees_rows) std::fill_n(out, shape.head_dim_v, 0.0f);
  if (!sees_rows && task.sink_logits == nullptr) {
    if (wants_state) {
      task.m[index] = -std::numeric_limits<float>::infinity();
      task.d[index] = 0.0f;
    }
    return true;
  }
  const Denominator sum = with_sink(task, head, state.m, state.d);
  if (!wants_state) {
    const bool finite = std::isfinite(sum.d) && std::isfinite(sum.m);
    return (!sees_rows ||
            scale_row(state.o, static_cast<float>(sum.shrink / sum.d), shape.head_dim_v, out)) &&
           finite;
  }
  const float natural = static_cast<float>(sum.m * kLn2);
  const double rounding = std::exp2(sum.m - static_cast<double>(natural) / kLn2);
  task.m[index] = natural;
  task.d[index] = static_cast<float>(sum.d * rounding);
  const bool finite = std::isfinite(task.m[index]) && std::isfinite(task.d[index]);
  return (!sees_rows ||
          scale_row(state.o, static_cast<float>(sum.shrink * rounding), shape.head_dim_v, out)) &&
         finite;
}

}  // namespace volvelle
