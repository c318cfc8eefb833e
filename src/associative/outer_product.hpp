// A memory of constant size that a key reads linearly: a matrix S [value_dim, key_dim], to which
// every written pair adds one rank-one term and which decays by a constant factor per write. A read
// is S q, without softmax or normaliser (Tensor Cache, arXiv 2605.22884, where the state is S
// transposed).
//
//   outer   S <- decay S + rate v k^T                          sums what is written to a key
//   delta   S <- decay S + rate (v - S k) k^T                  moves what a key reads towards v
//   wedge   S <- decay S + rate (v k^T - k v^T)                antisymmetric, key_dim == value_dim
//
// Tokens are processed in chunks whose result is that of the token-by-token rule up to rounding:
// with p = decay, local index a of a chunk of c tokens, and u the written values (v, or for the
// delta rule the solution of (I + rate L) U = V - diag(p^a) K S^T, L_ab = p^(a-1-b) k_a.k_b for b <
// a),
//
//   read of query a   p^(a+1) S q_a + rate sum_{b <= a} p^(a-b) (q_a.k_b) u_b
//   state             p^c S + rate sum_b p^(c-1-b) u_b k_b^T
//
// Thread rule: thread-compatible; const members may run at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "associative/token_rows.hpp"
#include "volvelle/base/result.hpp"

namespace volvelle {

enum class WriteRule { kOuter, kDelta, kWedge };

/// "outer", "delta" or "wedge".
const char* to_string(WriteRule rule) noexcept;

struct OuterProductConfig {
  int key_dim = 0;
  int value_dim = 0;
  WriteRule rule = WriteRule::kOuter;
  double decay = 0.995;  // per write, in (0, 1]; rounded once to the type of the memory
  double rate = 0.05;    // above 0
  KeyScale key_scale = KeyScale::kNone;  // of written keys, not of queries
  int chunk = 64;                        // tokens processed at once; changes rounding only
  bool operator==(const OuterProductConfig&) const = default;
};

/// T: float or double, the type of rows, state and arithmetic.
template <class T>
class OuterProductMemory {
 public:
  /// An empty memory. Errors: invalid_argument (dimensions not in 1..16384, decay, rate or chunk
  /// out of range, wedge rule with different dimensions).
  static Result<OuterProductMemory> create(const OuterProductConfig& config);

  /// Writes n pairs in order. keys: [n, key_dim], values: [n, value_dim]; n may be 0. Errors, all
  /// of which leave the memory as it was: invalid_argument (sizes; delta rule with rate |k|^2 >= 1
  /// + decay, for which the state would grow without limit), numeric (NaN, infinity, overflow).
  Status write(std::span<const T> keys, std::span<const T> values);

  /// outputs [n, value_dim] = S q for queries [n, key_dim]. Errors: invalid_argument (sizes),
  /// numeric.
  Status read(std::span<const T> queries, std::span<T> outputs) const;

  /// Writes n pairs; the queries of token a read the state after write a. queries: [n, group,
  /// key_dim] with any group >= 1 (query heads that share the keys), outputs: [n, group,
  /// value_dim]. Errors: as write(); outputs are unspecified then.
  Status write_and_read(std::span<const T> queries, std::span<const T> keys,
                        std::span<const T> values, std::span<T> outputs);

  /// Appends the tokens of `later`, which began empty: S <- decay^m S + S_later for its m writes.
  /// Errors, which leave the memory as it was: unsupported (delta rule: what a token writes depends
  /// on the state before it, so segments must be written in order), mismatch (other configuration),
  /// numeric (overflow).
  Status merge(const OuterProductMemory& later);

  /// Puts back what state() and written() gave. Errors: mismatch (size), numeric (NaN or infinity),
  /// corrupt (wedge rule and not antisymmetric bit for bit; nothing written but not zero).
  Status restore(std::span<const T> state, std::int64_t written);
  void reset();

  /// S, row-major [value_dim, key_dim]. Under the wedge rule S == -S^T in every bit but zeros'
  /// signs.
  std::span<const T> state() const noexcept { return state_; }
  std::int64_t written() const noexcept { return written_; }
  const OuterProductConfig& config() const noexcept { return config_; }

 private:
  explicit OuterProductMemory(const OuterProductConfig& config);
  Status advance(std::span<const T> queries, std::span<const T> keys, std::span<const T> values,
                 std::span<T> outputs);
  Status check_tokens(std::span<const T> keys, std::span<const T> values) const;
  RowMatrix<T> written_values(const RowMatrix<T>& keys, const RowMatrix<T>& values) const;
  void read_chunk(std::span<const T> queries, const RowMatrix<T>& keys, const RowMatrix<T>& values,
                  std::span<T> outputs) const;
  void add_chunk(const RowMatrix<T>& keys, const RowMatrix<T>& values);
  double power(std::int64_t n) const;
  Status adopt_next(const char* operation, std::int64_t n_new);

  OuterProductConfig config_;
  std::vector<T> state_;
  std::vector<T> next_;    // the state that a call under way has reached
  std::vector<T> powers_;  // decay^0 .. decay^chunk
  std::int64_t written_ = 0;
};

extern template class OuterProductMemory<float>;
extern template class OuterProductMemory<double>;

}  // namespace volvelle
