// A memory of constant size that answers by ridge regression over the keys it has seen, and can
// step the query along the sequence first (Echo, spectral Koopman attention, arXiv 2605.06997). For
// written keys x_t and values v_t, both multiplied by the root of the token's gate, it holds
//
//   G = ridge I + sum x_t x_t^T     M = sum x_t x_{t-1}^T     C = sum v_t x_t^T
//   read   y = gain C (G^-1 M)^steps G^-1 q
//
// steps = 0 gives the value stored with the key that matches q (least squares when keys outnumber
// dimensions), 1 that of the token after it, 2 that of the second after it. This is the appendix's
// operator: x_t ~ (M G^-1) x_{t-1}, so it acts on q itself and never on a whitened query. It
// contracts in the metric of G, |R^-T M R^-1| <= 1 - ridge / max eig(G), so nothing needs to be
// normalised.
//
// Statistics are float64 whatever the type of the rows: in float32 the rounding of a long stream
// outgrows the ridge. G is kept as its triangular factor, which follows every token in O(r^2); any
// split of the tokens into calls gives equal bits. Thread rule: thread-compatible; const members
// may run at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "associative/token_rows.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

struct KoopmanConfig {
  int key_dim = 0;  // r
  int value_dim = 0;
  int steps = 0;                         // 0, 1 or 2
  double ridge = 1e-3;                   // above 0, in units of squared keys
  double gain = 1.0;                     // finite
  KeyScale key_scale = KeyScale::kNone;  // of written keys and of queries
  bool operator==(const KoopmanConfig&) const = default;
};

/// Tokens in order. gates: [n], each at least 0, or empty for 1; a token of gate 0 adds nothing to
/// the sums but takes its place in the order.
template <class T>
struct GatedRows {
  std::span<const T> keys;    // [n, key_dim]
  std::span<const T> values;  // [n, value_dim]
  std::span<const T> gates;
};

/// All that a memory is, besides its configuration. Keys here are scaled and gated.
struct KoopmanState {
  std::int64_t written = 0;
  std::vector<double> factor;     // R [r, r], upper triangular, R^T R = G
  std::vector<double> lag;        // M [r, r], newer key first; empty when steps is 0
  std::vector<double> values;     // C [value_dim, r]
  std::vector<double> first_key;  // [r], zero while nothing is written
  std::vector<double> last_key;   // [r]
  bool operator==(const KoopmanState&) const = default;
};

/// T: float or double, the type of rows and reads.
template <class T>
class KoopmanMemory {
 public:
  /// An empty memory: it reads 0. Errors: invalid_argument (dimensions not in 1..4096, steps not in
  /// 0..2, ridge or gain out of range).
  static Result<KoopmanMemory> create(const KoopmanConfig& config);

  /// Writes n tokens, n may be 0. Errors, which leave the memory as it was: invalid_argument
  /// (sizes, a negative gate), numeric (NaN, infinity, overflow).
  Status write(const GatedRows<T>& tokens);

  /// outputs [n, value_dim] for queries [n, key_dim], from all that is written. Errors:
  /// invalid_argument (sizes), numeric.
  Status read(std::span<const T> queries, std::span<T> outputs) const;

  /// Query t reads what was written before token t, then token t is written: a key must not count
  /// before its successor is known. Shapes as read() and write(), one query a token. Errors: as
  /// write(); outputs are unspecified then.
  Status write_and_read(std::span<const T> queries, const GatedRows<T>& tokens,
                        std::span<T> outputs);

  /// scores [n] in [0, 1]: 1 - ridge q^T G^-1 q / |q|^2, how much of the direction of each query
  /// has been written; 0 for an unknown direction or a zero query. Errors: invalid_argument
  /// (sizes), numeric.
  Status support(std::span<const T> queries, std::span<double> scores) const;

  /// Appends the tokens of `later`, with the pair (its first, our last). Errors, which leave the
  /// memory as it was: mismatch (other configuration), numeric (overflow, lost definiteness).
  Status merge(const KoopmanMemory& later);

  /// Forgets the first n tokens. `oldest`: these tokens as they were written and, unless they are
  /// all, the one after them. Errors, which leave the memory as it was: invalid_argument (sizes, n
  /// above written()), mismatch (the first key is not the first one written), numeric (NaN; G would
  /// lose its definiteness: these are not tokens of this memory, or too large for its ridge).
  Status forget_first(std::int64_t n, const GatedRows<T>& oldest);

  /// Puts back what state() gave, with equal bits. Errors: mismatch (sizes), numeric (NaN or
  /// infinity), corrupt (factor not upper triangular or a pivot below the ridge's).
  Status restore(const KoopmanState& state);

  const KoopmanState& state() const noexcept { return state_; }
  std::int64_t written() const noexcept { return state_.written; }
  const KoopmanConfig& config() const noexcept { return config_; }

 private:
  struct WeightedRows {
    RowMatrix<double> keys, values;  // [n, key_dim], [n, value_dim]
  };
  explicit KoopmanMemory(const KoopmanConfig& config);
  Result<WeightedRows> weighted(const char* operation, const GatedRows<T>& tokens) const;
  Status check_queries(const char* operation, std::span<const T> queries, std::size_t n_out,
                       int out_dim) const;
  Status adopt_next(const char* operation);

  KoopmanConfig config_;
  KoopmanState state_;
  KoopmanState next_;  // the state that a call under way has reached
};

extern template class KoopmanMemory<float>;
extern template class KoopmanMemory<double>;

}  // namespace volvelle
