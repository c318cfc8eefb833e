// Chunks as matrix products. A call works on a copy of the state and adopts it when all is finite,
// so an error never leaves half a write behind. Powers of the decay come from its rounded value in
// double: a decay of 0.9995 that is rounded differently in two places is another memory after 1,000
// writes.
#include "associative/outer_product.hpp"

#include <cmath>
#include <string>

#include "base/result_macros.hpp"

namespace volvelle {

namespace {

constexpr int kMaxDim = 16384;
constexpr int kMaxChunk = 4096;

Error invalid(const std::string& expected) {
  return {ErrorCode::kInvalidArgument, "outer-product memory: expected " + expected};
}

Status check(const OuterProductConfig& config) {
  if (config.key_dim < 1 || config.key_dim > kMaxDim || config.value_dim < 1 ||
      config.value_dim > kMaxDim)
    return invalid("key_dim and value_dim in 1.." + std::to_string(kMaxDim) + ", found " +
                   std::to_string(config.key_dim) + " and " + std::to_string(config.value_dim));
  if (!(config.decay > 0.0 && config.decay <= 1.0))
    return invalid("a decay above 0 and at most 1, found " + std::to_string(config.decay));
  if (!(config.rate > 0.0) || !std::isfinite(config.rate))
    return invalid("a finite rate above 0, found " + std::to_string(config.rate));
  if (config.chunk < 1 || config.chunk > kMaxChunk)
    return invalid("a chunk of 1.." + std::to_string(kMaxChunk) + " tokens, found " +
                   std::to_string(config.chunk));
  if (config.rule == WriteRule::kWedge && config.key_dim != config.value_dim)
    return invalid("key_dim == value_dim for the wedge rule, found " +
                   std::to_string(config.key_dim) + " and " + std::to_string(config.value_dim));
  return {};
}

template <class T>
bool is_antisymmetric(std::span<const T> square, std::size_t dim) noexcept {
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = 0; j <= i; ++j)
      if (square[i * dim + j] != -square[j * dim + i]) return false;
  return true;
}

/// The triangle below the diagonal from the one above, so that an antisymmetric state does not
/// depend on how the compiler rounds the two.
template <class T>
void mirror_negated(T* state, std::size_t dim) noexcept {
  for (std::size_t i = 0; i < dim; ++i) {
    state[i * dim + i] = T(0);
    for (std::size_t j = i + 1; j < dim; ++j) state[j * dim + i] = -state[i * dim + j];
  }
}

/// state <- decay state + rate (term - term^T).
template <class T>
void add_antisymmetric(T* state, const T* term, std::size_t dim, T decay, T rate) noexcept {
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = i + 1; j < dim; ++j) {
      const T written = term[i * dim + j] - term[j * dim + i];
      state[i * dim + j] = decay * state[i * dim + j] + rate * written;
    }
  mirror_negated(state, dim);
}

/// weights(row, b) *= powers[a - b] for b <= a = row / group, and 0 for later tokens.
template <class T>
void mask_and_decay(RowMatrix<T>& weights, std::span<const T> powers, Eigen::Index group) noexcept {
  for (Eigen::Index row = 0; row < weights.rows(); ++row) {
    const Eigen::Index a = row / group;
    for (Eigen::Index b = 0; b < weights.cols(); ++b)
      weights(row, b) = b <= a ? weights(row, b) * powers[static_cast<std::size_t>(a - b)] : T(0);
  }
}

}  // namespace

const char* to_string(WriteRule rule) noexcept {
  switch (rule) {
    case WriteRule::kOuter:
      return "outer";
    case WriteRule::kDelta:
      return "delta";
    case WriteRule::kWedge:
      return "wedge";
  }
  return "unknown";
}

template <class T>
Result<OuterProductMemory<T>> OuterProductMemory<T>::create(const OuterProductConfig& config) {
  VOLVELLE_RETURN_IF_ERROR(check(config));
  return OuterProductMemory(config);
}

template <class T>
OuterProductMemory<T>::OuterProductMemory(const OuterProductConfig& config)
    : config_(config),
      state_(static_cast<std::size_t>(config.key_dim) * static_cast<std::size_t>(config.value_dim)),
      next_(state_.size()) {
  for (int n = 0; n <= config.chunk; ++n) powers_.push_back(static_cast<T>(power(n)));
}

template <class T>
double OuterProductMemory<T>::power(std::int64_t n) const {
  return std::pow(static_cast<double>(static_cast<T>(config_.decay)), static_cast<double>(n));
}

template <class T>
Status OuterProductMemory<T>::write(std::span<const T> keys, std::span<const T> values) {
  return advance({}, keys, values, {});
}

template <class T>
Status OuterProductMemory<T>::read(std::span<const T> queries, std::span<T> outputs) const {
  const std::size_t n = queries.size() / static_cast<std::size_t>(config_.key_dim);
  VOLVELLE_RETURN_IF_ERROR(
      check_rows<T>("outer-product read", "queries", queries, n, config_.key_dim));
  if (outputs.size() != n * static_cast<std::size_t>(config_.value_dim))
    return invalid("room for " + std::to_string(n) + " outputs of " +
                   std::to_string(config_.value_dim) + " numbers, found " +
                   std::to_string(outputs.size()));
  const auto state = as_rows<T>(state_, config_.key_dim);
  Eigen::Map<RowMatrix<T>> out(outputs.data(), static_cast<Eigen::Index>(n), config_.value_dim);
  if (n > 0) out.noalias() = as_rows(queries, config_.key_dim) * state.transpose();
  return check_outputs<T>("outer-product read", outputs);
}

template <class T>
Status OuterProductMemory<T>::write_and_read(std::span<const T> queries, std::span<const T> keys,
                                             std::span<const T> values, std::span<T> outputs) {
  const std::size_t key_dim = static_cast<std::size_t>(config_.key_dim);
  const std::size_t n = keys.size() / key_dim;
  const std::size_t n_queries = queries.size() / key_dim;
  VOLVELLE_RETURN_IF_ERROR(check_rows<T>("outer-product write_and_read", "queries", queries,
                                         n_queries, config_.key_dim));
  if (n == 0 ? n_queries != 0 : n_queries == 0 || n_queries % n != 0)
    return invalid("the same number of queries for each of " + std::to_string(n) +
                   " tokens, found " + std::to_string(n_queries) + " queries");
  if (outputs.size() != n_queries * static_cast<std::size_t>(config_.value_dim))
    return invalid("room for " + std::to_string(n_queries) + " outputs of " +
                   std::to_string(config_.value_dim) + " numbers, found " +
                   std::to_string(outputs.size()));
  return advance(queries, keys, values, outputs);
}

template <class T>
Status OuterProductMemory<T>::check_tokens(std::span<const T> keys,
                                           std::span<const T> values) const {
  const std::size_t key_dim = static_cast<std::size_t>(config_.key_dim);
  const std::size_t n = keys.size() / key_dim;
  VOLVELLE_RETURN_IF_ERROR(check_rows<T>("outer-product write", "keys", keys, n, config_.key_dim));
  VOLVELLE_RETURN_IF_ERROR(
      check_rows<T>("outer-product write", "values", values, n, config_.value_dim));
  if (config_.rule != WriteRule::kDelta) return {};
  for (std::size_t t = 0; t < n; ++t) {
    const auto key = keys.subspan(t * key_dim, key_dim);
    const double length = row_length(key) / scale_divisor(key, config_.key_scale);
    if (config_.rate * length * length >= 1.0 + config_.decay)
      return invalid("rate |key|^2 below 1 + decay for the delta rule, found a key of length " +
                     std::to_string(length) + "; scale keys to unit length");
  }
  return {};
}

template <class T>
Status OuterProductMemory<T>::advance(std::span<const T> queries, std::span<const T> keys,
                                      std::span<const T> values, std::span<T> outputs) {
  VOLVELLE_RETURN_IF_ERROR(check_tokens(keys, values));
  const std::size_t key_dim = static_cast<std::size_t>(config_.key_dim);
  const std::size_t value_dim = static_cast<std::size_t>(config_.value_dim);
  const std::size_t n = keys.size() / key_dim;
  if (n == 0) return {};
  const std::size_t group = queries.size() / keys.size();
  next_ = state_;
  for (std::size_t begin = 0; begin < n; begin += static_cast<std::size_t>(config_.chunk)) {
    const std::size_t count = std::min(n - begin, static_cast<std::size_t>(config_.chunk));
    const RowMatrix<T> k = scaled_rows(keys.subspan(begin * key_dim, count * key_dim),
                                       config_.key_dim, config_.key_scale)
                               .template cast<T>();
    const RowMatrix<T> v = written_values(
        k, as_rows(values.subspan(begin * value_dim, count * value_dim), config_.value_dim));
    if (group > 0)
      read_chunk(queries.subspan(begin * group * key_dim, count * group * key_dim), k, v,
                 outputs.subspan(begin * group * value_dim, count * group * value_dim));
    add_chunk(k, v);
  }
  VOLVELLE_RETURN_IF_ERROR(check_outputs<T>("outer-product write_and_read", outputs));
  return adopt_next("outer-product write", static_cast<std::int64_t>(n));
}

template <class T>
RowMatrix<T> OuterProductMemory<T>::written_values(const RowMatrix<T>& keys,
                                                   const RowMatrix<T>& values) const {
  if (config_.rule != WriteRule::kDelta) return values;
  const Eigen::Index n = keys.rows();
  const Eigen::Map<const Eigen::VectorX<T>> powers(powers_.data(), n);
  RowMatrix<T> written = -(keys * as_rows<T>(next_, config_.key_dim).transpose());
  written = powers.asDiagonal() * written;
  written += values;
  RowMatrix<T> lower = keys * keys.transpose();
  for (Eigen::Index t = 1; t < n; ++t)
    for (Eigen::Index s = 0; s < t; ++s)
      lower(t, s) *= static_cast<T>(config_.rate) * powers(t - 1 - s);
  lower.template triangularView<Eigen::UnitLower>().solveInPlace(written);
  return written;
}

template <class T>
void OuterProductMemory<T>::read_chunk(std::span<const T> queries, const RowMatrix<T>& keys,
                                       const RowMatrix<T>& values, std::span<T> outputs) const {
  const auto q = as_rows(queries, config_.key_dim);
  const Eigen::Index group = q.rows() / keys.rows();
  const T rate = static_cast<T>(config_.rate);
  Eigen::Map<RowMatrix<T>> out(outputs.data(), q.rows(), config_.value_dim);
  out.noalias() = q * as_rows<T>(next_, config_.key_dim).transpose();
  for (Eigen::Index row = 0; row < q.rows(); ++row)
    out.row(row) *= powers_[static_cast<std::size_t>(row / group + 1)];
  RowMatrix<T> weights = q * keys.transpose();
  mask_and_decay<T>(weights, powers_, group);
  out.noalias() += rate * weights * values;
  if (config_.rule != WriteRule::kWedge) return;
  weights.noalias() = q * values.transpose();
  mask_and_decay<T>(weights, powers_, group);
  out.noalias() -= rate * weights * keys;
}

template <class T>
void OuterProductMemory<T>::add_chunk(const RowMatrix<T>& keys, const RowMatrix<T>& values) {
  const Eigen::Index n = keys.rows();
  const Eigen::Map<const Eigen::VectorX<T>> powers(powers_.data(), n);
  const RowMatrix<T> weighted = powers.reverse().asDiagonal() * keys;
  const RowMatrix<T> term = values.transpose() * weighted;
  const T decay = powers_[static_cast<std::size_t>(n)];
  const T rate = static_cast<T>(config_.rate);
  if (config_.rule == WriteRule::kWedge)
    return add_antisymmetric(next_.data(), term.data(), static_cast<std::size_t>(config_.key_dim),
                             decay, rate);
  Eigen::Map<RowMatrix<T>> state(next_.data(), config_.value_dim, config_.key_dim);
  state = decay * state + rate * term;
}

template <class T>
Status OuterProductMemory<T>::merge(const OuterProductMemory& later) {
  if (config_.rule == WriteRule::kDelta)
    return Error{
        ErrorCode::kUnsupported,
        "outer-product merge: memories of the delta rule have no merge, because what a token "
        "writes depends on the state before it; write the tokens in order"};
  OuterProductConfig other = later.config_;
  other.chunk = config_.chunk;
  if (other != config_)
    return Error{ErrorCode::kMismatch,
                 "outer-product merge: expected two memories of one configuration, found different "
                 "dimensions, rules, decays, rates or key scales"};
  const T decay = static_cast<T>(power(later.written_));
  for (std::size_t i = 0; i < state_.size(); ++i) next_[i] = decay * state_[i] + later.state_[i];
  if (config_.rule == WriteRule::kWedge)
    mirror_negated(next_.data(), static_cast<std::size_t>(config_.key_dim));
  return adopt_next("outer-product merge", later.written_);
}

template <class T>
Status OuterProductMemory<T>::adopt_next(const char* operation, std::int64_t n_new) {
  if (!is_finite<T>(next_))
    return Error{
        ErrorCode::kNumeric,
        std::string(operation) +
            ": expected a finite state, found an overflow; the memory is as it was before"};
  state_.swap(next_);
  written_ += n_new;
  return {};
}

template <class T>
Status OuterProductMemory<T>::restore(std::span<const T> state, std::int64_t written) {
  if (state.size() != state_.size())
    return Error{ErrorCode::kMismatch, "outer-product restore: expected a state of " +
                                           std::to_string(state_.size()) + " numbers, found " +
                                           std::to_string(state.size())};
  if (!is_finite(state))
    return Error{ErrorCode::kNumeric,
                 "outer-product restore: expected a finite state, found NaN or infinity"};
  const bool is_zero = std::all_of(state.begin(), state.end(), [](T v) { return v == T(0); });
  if (written < 0 || (written == 0 && !is_zero))
    return Error{ErrorCode::kCorrupt,
                 "outer-product restore: a state that is not zero can not come "
                 "from " +
                     std::to_string(written) + " writes"};
  if (config_.rule == WriteRule::kWedge &&
      !is_antisymmetric(state, static_cast<std::size_t>(config_.key_dim)))
    return Error{ErrorCode::kCorrupt,
                 "outer-product restore: expected an antisymmetric state for the wedge rule"};
  state_.assign(state.begin(), state.end());
  written_ = written;
  return {};
}

template <class T>
void OuterProductMemory<T>::reset() {
  std::fill(state_.begin(), state_.end(), T(0));
  written_ = 0;
}

template class OuterProductMemory<float>;
template class OuterProductMemory<double>;

}  // namespace volvelle
