// Reads solve from right to left with the factor, so the operator is never formed. A call works on
// a copy of the state and adopts it when all is finite, so an error leaves nothing half done. Every
// exact pivot of G is at least the ridge's root: one that is far below proves that G has been
// damaged.
#include "associative/koopman.hpp"

#include <cmath>
#include <string>

#include "associative/cholesky_update.hpp"
#include "base/result_macros.hpp"

namespace volvelle {

namespace {

using MatrixD = RowMatrix<double>;
constexpr int kMaxDim = 4096;
constexpr double kPivotShare = 0.5;  // of the ridge; the rest is room for rounding

Error invalid(const std::string& expected) {
  return {ErrorCode::kInvalidArgument, "Koopman memory: expected " + expected};
}

Error indefinite(const char* operation, const char* why) {
  return {ErrorCode::kNumeric, std::string(operation) +
                                   ": the key matrix would lose its definiteness; " + why +
                                   "; the memory is as it was before"};
}

Status check(const KoopmanConfig& config) {
  if (config.key_dim < 1 || config.key_dim > kMaxDim || config.value_dim < 1 ||
      config.value_dim > kMaxDim)
    return invalid("key_dim and value_dim in 1.." + std::to_string(kMaxDim) + ", found " +
                   std::to_string(config.key_dim) + " and " + std::to_string(config.value_dim));
  if (config.steps < 0 || config.steps > 2)
    return invalid("0, 1 or 2 steps, found " + std::to_string(config.steps));
  if (!(config.ridge > 0.0) || !std::isfinite(config.ridge))
    return invalid("a finite ridge above 0, found " + std::to_string(config.ridge));
  if (!std::isfinite(config.gain))
    return invalid("a finite gain, found " + std::to_string(config.gain));
  return {};
}

Eigen::Map<MatrixD> as_matrix(std::vector<double>& values, Eigen::Index n_columns) {
  return {values.data(), std::ssize(values) / n_columns, n_columns};
}

KoopmanState empty_state(const KoopmanConfig& config) {
  const std::size_t r = static_cast<std::size_t>(config.key_dim);
  KoopmanState state;
  state.factor.assign(r * r, 0.0);
  for (std::size_t k = 0; k < r; ++k) state.factor[k * r + k] = std::sqrt(config.ridge);
  state.lag.assign(config.steps == 0 ? 0 : r * r, 0.0);
  state.values.assign(r * static_cast<std::size_t>(config.value_dim), 0.0);
  state.first_key.assign(r, 0.0);
  state.last_key.assign(r, 0.0);
  return state;
}

bool has_finite_sums(const KoopmanState& state) noexcept {
  for (const auto* part :
       {&state.factor, &state.lag, &state.values, &state.first_key, &state.last_key})
    if (!is_finite<double>(*part)) return false;
  return true;
}

/// matrix [rows, r] += sign column x^T, column: [rows].
void add_product(std::span<double> matrix, std::span<const double> column,
                 std::span<const double> x, double sign) noexcept {
  double* row = matrix.data();
  for (const double entry : column) {
    const double weight = sign * entry;
    for (std::size_t j = 0; j < x.size(); ++j) row[j] += weight * x[j];
    row += x.size();
  }
}

std::span<const double> row_of(const MatrixD& matrix, Eigen::Index row) noexcept {
  return {matrix.data() + row * matrix.cols(), static_cast<std::size_t>(matrix.cols())};
}

/// Adds one token. scratch: [r].
void add_token(KoopmanState& state, std::span<const double> key, std::span<const double> value,
               std::span<double> scratch) noexcept {
  std::copy(key.begin(), key.end(), scratch.begin());
  cholesky_add(state.factor, scratch);
  if (!state.lag.empty()) add_product(state.lag, key, state.last_key, 1.0);
  add_product(state.values, value, key, 1.0);
  if (state.written == 0) std::copy(key.begin(), key.end(), state.first_key.begin());
  std::copy(key.begin(), key.end(), state.last_key.begin());
  ++state.written;
}

/// Columns of x [r, n] become R^-T x, and G^-1 x.
void half_solve(const KoopmanState& state, MatrixD& x) {
  const auto factor = as_rows<double>(state.factor, x.rows());
  factor.transpose().triangularView<Eigen::Lower>().solveInPlace(x);
}
void solve(const KoopmanState& state, MatrixD& x) {
  half_solve(state, x);
  as_rows<double>(state.factor, x.rows()).triangularView<Eigen::Upper>().solveInPlace(x);
}

/// Reads of the columns of x [r, n]: [value_dim, n].
MatrixD read_columns(const KoopmanConfig& config, const KoopmanState& state, MatrixD x) {
  solve(state, x);
  for (int step = 0; step < config.steps; ++step) {
    x = (as_rows<double>(state.lag, x.rows()) * x).eval();
    solve(state, x);
  }
  return config.gain * (as_rows<double>(state.values, x.rows()) * x);
}

/// The factor of `gram`; false when a squared pivot is below `floor`.
bool factorize(const MatrixD& gram, double floor, std::vector<double>& factor) {
  const Eigen::LLT<MatrixD, Eigen::Upper> llt(gram);
  if (llt.info() != Eigen::Success) return false;
  const MatrixD upper = llt.matrixU();
  if (!(upper.diagonal().array().square() >= floor).all()) return false;
  factor.assign(upper.data(), upper.data() + upper.size());
  return true;
}

bool same_sizes(const KoopmanState& a, const KoopmanState& b) noexcept {
  return a.factor.size() == b.factor.size() && a.lag.size() == b.lag.size() &&
         a.values.size() == b.values.size() && a.first_key.size() == b.first_key.size() &&
         a.last_key.size() == b.last_key.size();
}

bool is_factor(std::span<const double> factor, std::size_t r, double floor) noexcept {
  for (std::size_t k = 0; k < r; ++k) {
    const double pivot = factor[k * r + k];
    if (!(pivot > 0.0 && pivot * pivot >= floor)) return false;
    for (std::size_t j = 0; j < k; ++j)
      if (factor[k * r + j] != 0.0) return false;
  }
  return true;
}

}  // namespace

template <class T>
Result<KoopmanMemory<T>> KoopmanMemory<T>::create(const KoopmanConfig& config) {
  VOLVELLE_RETURN_IF_ERROR(check(config));
  return KoopmanMemory(config);
}

template <class T>
KoopmanMemory<T>::KoopmanMemory(const KoopmanConfig& config)
    : config_(config), state_(empty_state(config)), next_(state_) {}

template <class T>
Result<typename KoopmanMemory<T>::WeightedRows> KoopmanMemory<T>::weighted(
    const char* operation, const GatedRows<T>& tokens) const {
  const std::size_t n = tokens.keys.size() / static_cast<std::size_t>(config_.key_dim);
  VOLVELLE_RETURN_IF_ERROR(check_rows(operation, "keys", tokens.keys, n, config_.key_dim));
  VOLVELLE_RETURN_IF_ERROR(check_rows(operation, "values", tokens.values, n, config_.value_dim));
  WeightedRows rows{scaled_rows(tokens.keys, config_.key_dim, config_.key_scale),
                    as_rows(tokens.values, config_.value_dim).template cast<double>()};
  if (tokens.gates.empty()) return rows;
  VOLVELLE_RETURN_IF_ERROR(check_rows(operation, "gates", tokens.gates, n, 1));
  const auto gates = as_rows(tokens.gates, 1).template cast<double>().eval();
  if ((gates.array() < 0.0).any())
    return invalid("gates of at least 0, found " + std::to_string(gates.minCoeff()));
  const Eigen::VectorXd roots = gates.array().sqrt();
  rows.keys = roots.asDiagonal() * rows.keys;
  rows.values = roots.asDiagonal() * rows.values;
  return rows;
}

template <class T>
Status KoopmanMemory<T>::check_queries(const char* operation, std::span<const T> queries,
                                       std::size_t n_out, int out_dim) const {
  const std::size_t n = queries.size() / static_cast<std::size_t>(config_.key_dim);
  VOLVELLE_RETURN_IF_ERROR(check_rows(operation, "queries", queries, n, config_.key_dim));
  if (n_out != n * static_cast<std::size_t>(out_dim))
    return invalid("room for " + std::to_string(n) + " results of " + std::to_string(out_dim) +
                   " numbers, found " + std::to_string(n_out));
  return {};
}

template <class T>
Status KoopmanMemory<T>::write(const GatedRows<T>& tokens) {
  VOLVELLE_ASSIGN_OR_RETURN(const WeightedRows rows, weighted("Koopman write", tokens));
  std::vector<double> scratch(state_.first_key.size());
  next_ = state_;
  for (Eigen::Index t = 0; t < rows.keys.rows(); ++t)
    add_token(next_, row_of(rows.keys, t), row_of(rows.values, t), scratch);
  return adopt_next("Koopman write");
}

template <class T>
Status KoopmanMemory<T>::read(std::span<const T> queries, std::span<T> outputs) const {
  VOLVELLE_RETURN_IF_ERROR(
      check_queries("Koopman read", queries, outputs.size(), config_.value_dim));
  if (queries.empty()) return {};
  const MatrixD x = scaled_rows(queries, config_.key_dim, config_.key_scale).transpose();
  Eigen::Map<RowMatrix<T>>(outputs.data(), x.cols(), config_.value_dim) =
      read_columns(config_, state_, x).transpose().template cast<T>();
  return check_outputs<T>("Koopman read", outputs);
}

template <class T>
Status KoopmanMemory<T>::write_and_read(std::span<const T> queries, const GatedRows<T>& tokens,
                                        std::span<T> outputs) {
  VOLVELLE_RETURN_IF_ERROR(
      check_queries("Koopman write_and_read", queries, outputs.size(), config_.value_dim));
  if (queries.size() != tokens.keys.size()) return invalid("one query for each token");
  VOLVELLE_ASSIGN_OR_RETURN(const WeightedRows rows, weighted("Koopman write_and_read", tokens));
  const MatrixD x = scaled_rows(queries, config_.key_dim, config_.key_scale);
  std::vector<double> scratch(state_.first_key.size());
  next_ = state_;
  for (Eigen::Index t = 0; t < x.rows(); ++t) {
    const MatrixD y = read_columns(config_, next_, x.row(t).transpose());
    Eigen::Map<Eigen::VectorX<T>>(outputs.data() + t * config_.value_dim, config_.value_dim) =
        y.col(0).template cast<T>();
    add_token(next_, row_of(rows.keys, t), row_of(rows.values, t), scratch);
  }
  VOLVELLE_RETURN_IF_ERROR(check_outputs<T>("Koopman write_and_read", outputs));
  return adopt_next("Koopman write_and_read");
}

template <class T>
Status KoopmanMemory<T>::support(std::span<const T> queries, std::span<double> scores) const {
  VOLVELLE_RETURN_IF_ERROR(check_queries("Koopman support", queries, scores.size(), 1));
  if (queries.empty()) return {};
  MatrixD x = scaled_rows(queries, config_.key_dim, KeyScale::kUnit).transpose();
  const Eigen::VectorXd lengths = x.colwise().squaredNorm();
  half_solve(state_, x);
  for (Eigen::Index t = 0; t < x.cols(); ++t) {
    const double unknown = config_.ridge * x.col(t).squaredNorm();
    scores[static_cast<std::size_t>(t)] =
        lengths(t) > 0.0 ? std::clamp(1.0 - unknown / lengths(t), 0.0, 1.0) : 0.0;
  }
  return {};
}

template <class T>
Status KoopmanMemory<T>::merge(const KoopmanMemory& later) {
  if (later.config_ != config_)
    return Error{ErrorCode::kMismatch,
                 "Koopman merge: expected two memories of one configuration, found different ones"};
  if (later.written() == 0) return {};
  if (written() == 0) return restore(later.state());
  const Eigen::Index r = config_.key_dim;
  const auto ours = as_rows<double>(state_.factor, r),
             theirs = as_rows<double>(later.state_.factor, r);
  MatrixD gram = ours.transpose() * ours + theirs.transpose() * theirs;
  gram.diagonal().array() -= config_.ridge;
  next_ = state_;
  if (!factorize(gram, kPivotShare * config_.ridge, next_.factor))
    return indefinite("Koopman merge", "its keys are too large for this ridge");
  as_matrix(next_.values, r) += as_rows<double>(later.state_.values, r);
  if (config_.steps > 0) {
    as_matrix(next_.lag, r) += as_rows<double>(later.state_.lag, r);
    add_product(next_.lag, later.state_.first_key, state_.last_key, 1.0);
  }
  next_.last_key = later.state_.last_key;
  next_.written += later.written();
  return adopt_next("Koopman merge");
}

template <class T>
Status KoopmanMemory<T>::forget_first(std::int64_t n, const GatedRows<T>& oldest) {
  constexpr const char* kOperation = "Koopman forget_first";
  VOLVELLE_ASSIGN_OR_RETURN(const WeightedRows rows, weighted(kOperation, oldest));
  const bool all = n == written();
  if (n < 0 || n > written() || rows.keys.rows() != n + (all ? 0 : 1))
    return invalid("the first " + std::to_string(n) + " of " + std::to_string(written()) +
                   " tokens and the one after them, found " + std::to_string(rows.keys.rows()));
  if (n == 0) return {};
  if (!std::ranges::equal(row_of(rows.keys, 0), state_.first_key))
    return Error{
        ErrorCode::kMismatch,
        "Koopman forget_first: expected the first key that was written, found another; give "
        "the tokens from the oldest on"};
  if (all) {
    next_ = empty_state(config_);
    return adopt_next(kOperation);
  }
  std::vector<double> scratch(state_.first_key.size());
  next_ = state_;
  for (Eigen::Index t = 0; t < n; ++t) {
    const auto key = row_of(rows.keys, t);
    std::copy(key.begin(), key.end(), scratch.begin());
    if (!cholesky_remove(next_.factor, scratch, kPivotShare * config_.ridge))
      return indefinite(kOperation,
                        "give the tokens exactly as they were written, or its keys are too large "
                        "for this ridge");
    add_product(next_.values, row_of(rows.values, t), key, -1.0);
    if (config_.steps > 0) add_product(next_.lag, row_of(rows.keys, t + 1), key, -1.0);
  }
  next_.written -= n;
  std::ranges::copy(row_of(rows.keys, n), next_.first_key.begin());
  return adopt_next(kOperation);
}

template <class T>
Status KoopmanMemory<T>::adopt_next(const char* operation) {
  if (!has_finite_sums(next_))
    return Error{ErrorCode::kNumeric,
                 std::string(operation) +
                     ": expected finite sums, found an overflow; the memory is as it was before"};
  std::swap(state_, next_);
  return {};
}

template <class T>
Status KoopmanMemory<T>::restore(const KoopmanState& state) {
  if (!same_sizes(state, state_))
    return Error{ErrorCode::kMismatch,
                 "Koopman restore: expected a state of " + std::to_string(config_.key_dim) + " x " +
                     std::to_string(config_.value_dim) + " and " + std::to_string(config_.steps) +
                     " steps, found other sizes"};
  if (!has_finite_sums(state))
    return Error{ErrorCode::kNumeric,
                 "Koopman restore: expected a finite state, found NaN or infinity"};
  const std::size_t r = state_.first_key.size();
  if (state.written < 0 || !is_factor(state.factor, r, kPivotShare * config_.ridge))
    return Error{ErrorCode::kCorrupt,
                 "Koopman restore: expected an upper triangular factor with pivots of at least the "
                 "ridge's root, found another"};
  if (state.written == 0 && state != empty_state(config_))
    return Error{ErrorCode::kCorrupt, "Koopman restore: a state without tokens must be empty"};
  state_ = state;
  return {};
}

template class KoopmanMemory<float>;
template class KoopmanMemory<double>;

}  // namespace volvelle
