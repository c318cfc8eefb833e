// Perplexity in lockstep: for every chunk each run takes a step with all logits, then position by
// position the next token is scored and the distributions are compared with the first run's. Only
// the last row of a chunk is kept for the next one. Cost: one pass of the model per run, and per
// target and run one pass over the vocabulary for the score and one for the comparison.
#include "volvelle/eval/perplexity.hpp"

#include <algorithm>
#include <cmath>

#include "base/clock.hpp"
#include "base/result_macros.hpp"
#include "eval/difference_sums.hpp"
#include "eval/progress_meter.hpp"

namespace volvelle {
namespace {

/// Scores of one run.
struct Tally {
  std::vector<double> nll;  // [n_targets]
  DifferenceSums differences;
  double seconds = 0;
};

Status check(const std::vector<PerplexityRun>& runs, std::span<const TokenId> tokens,
             const PerplexityOptions& options) {
  const auto invalid = [](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, "perplexity: " + what};
  };
  if (runs.empty()) return invalid("no memory to measure");
  if (tokens.size() < 2)
    return invalid("at least 2 tokens are needed, got " + std::to_string(tokens.size()));
  if (options.chunk < 1)
    return invalid("the chunk must be at least 1 token, got " + std::to_string(options.chunk));
  for (const PerplexityRun& run : runs) {
    if (run.stepper->length() != 0) return invalid("'" + run.name + "' already holds tokens");
  }
  return {};
}

/// Logits of position `i` score token i + 1.
Status score(const std::vector<PerplexityRun>& runs, std::int64_t first, std::int64_t n,
             std::span<const TokenId> tokens, std::vector<Tally>& tallies) {
  for (std::int64_t i = 0; i < n && first + i + 1 < std::ssize(tokens); ++i) {
    const TokenId target = tokens[static_cast<std::size_t>(first + i + 1)];
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const std::span<const float> logits = runs[r].stepper->logits(i);
      VOLVELLE_RETURN_IF_ERROR(
          tallies[r].differences.add(runs.front().stepper->logits(i), logits, first + i));
      tallies[r].nll.push_back(negative_log_likelihood(logits, target));
    }
  }
  return {};
}

PerplexityRow make_row(const std::string& name, const Tally& tally) {
  PerplexityRow row;
  row.name = name;
  row.n_targets = std::ssize(tally.nll);
  const auto n = static_cast<double>(row.n_targets);
  for (const double nll : tally.nll) row.nll += nll / n;
  double squares = 0;
  for (const double nll : tally.nll) squares += (nll - row.nll) * (nll - row.nll);
  row.nll_error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  row.perplexity = std::exp(row.nll);
  row.perplexity_error = row.perplexity * row.nll_error;
  row.difference = tally.differences.finish();
  row.seconds = tally.seconds;
  return row;
}

}  // namespace

Result<std::vector<PerplexityRow>> measure_perplexity(std::vector<PerplexityRun>& runs,
                                                      std::span<const TokenId> tokens,
                                                      const PerplexityOptions& options,
                                                      const ProgressSink& progress) {
  VOLVELLE_RETURN_IF_ERROR(check(runs, tokens, options));
  const std::int64_t n_tokens = std::ssize(tokens);
  ProgressMeter meter(progress, "perplexity", "tokens", n_tokens * std::ssize(runs));
  std::vector<Tally> tallies(runs.size());
  for (std::int64_t first = 0; first < n_tokens; first += options.chunk) {
    const std::int64_t n = std::min(options.chunk, n_tokens - first);
    const auto chunk = tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
    for (std::size_t r = 0; r < runs.size(); ++r) {
      if (options.cancel.cancelled())
        return Error{ErrorCode::kCancelled, "perplexity: interrupted"};
      const auto start = Clock::now();
      VOLVELLE_RETURN_IF_ERROR(runs[r].stepper->step(chunk, Logits::kAll));
      tallies[r].seconds += seconds_since(start);
      meter.add(n);
    }
    VOLVELLE_RETURN_IF_ERROR(score(runs, first, n, tokens, tallies));
  }
  std::vector<PerplexityRow> rows;
  for (std::size_t r = 0; r < runs.size(); ++r) rows.push_back(make_row(runs[r].name, tallies[r]));
  return rows;
}

}  // namespace volvelle
