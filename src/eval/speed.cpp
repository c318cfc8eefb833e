// Speed at depth: variants alternated in one process, ratios paired within a repetition.
//
// A machine's speed moves by more than what is compared, so every repetition measures all variants
// right after one another, in an order rotated by one each time, and a ratio is taken within a
// repetition before the median is:
//
//   ratio = median over repetitions of  min(time of llama.cpp with flash, without) / our time above
//   1: we are faster
//
// The minimum is taken anew in each repetition, which favours llama.cpp. The state at a depth is
// computed once per variant. Cost: prefill to the deepest depth once, then (repetitions + a warm-up
// token) x (n_prefill + n_decode) tokens a depth, each times the number of variants.
#include "volvelle/eval/speed.hpp"

#include <algorithm>

#include "base/result_macros.hpp"
#include "eval/progress_meter.hpp"
#include "eval/speed_variant.hpp"
#include "eval/statistics.hpp"

namespace volvelle {
namespace {

using Variants = std::vector<std::unique_ptr<SpeedVariant>>;

Error invalid(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "speed: " + what};
}

Error cancelled(std::int64_t depth) {
  return Error{ErrorCode::kCancelled, "speed: cancelled at depth " + std::to_string(depth)};
}

/// Tokens that one repetition adds to a depth at most; both timed parts start there.
std::int64_t longest_block(const SpeedOptions& options) {
  return std::max(options.n_prefill, options.n_decode);
}

Status check_options(const SpeedOptions& options, std::int64_t n_tokens, const ModelInfo& model) {
  if (options.depths.empty()) return invalid("no depths given");
  if (options.n_decode < 1 || options.n_prefill < 0 || options.repetitions < 1) {
    return invalid(
        "at least 1 decoded token, 0 prefilled tokens and 1 repetition are needed, not " +
        std::to_string(options.n_decode) + ", " + std::to_string(options.n_prefill) + " and " +
        std::to_string(options.repetitions));
  }
  if (options.specs.empty() && !options.against_engine) return invalid("nothing to measure");
  const auto [low, high] = std::minmax_element(options.depths.begin(), options.depths.end());
  if (*low < 0) return invalid("a depth must be at least 0, not " + std::to_string(*low));
  if (n_tokens - longest_block(options) < *high) {
    return invalid(
        "depth " + std::to_string(*high) + " and the " + std::to_string(longest_block(options)) +
        " tokens measured there need a longer text than " + std::to_string(n_tokens) + " tokens");
  }
  if (*high > model.context_length - longest_block(options)) {
    return Error{ErrorCode::kContextExceeded,
                 "speed: depth " + std::to_string(*high) + " and the " +
                     std::to_string(longest_block(options)) +
                     " tokens measured there exceed the model's context of " +
                     std::to_string(model.context_length)};
  }
  return {};
}

Result<Variants> make_variants(const Model& model, const SpeedOptions& options,
                               std::int64_t n_ctx) {
  Variants variants;
  for (const std::string& spec : options.specs) {
    VOLVELLE_ASSIGN_OR_RETURN(auto variant, make_memory_variant(model, spec, options));
    variants.push_back(std::move(variant));
  }
  if (!options.against_engine) return variants;
  for (const bool flash_attention : {true, false}) {
    VOLVELLE_ASSIGN_OR_RETURN(auto variant,
                              make_engine_variant(model, n_ctx, flash_attention, options));
    variants.push_back(std::move(variant));
  }
  return variants;
}

/// Brings `variant` to `depth` in pieces of one ubatch, so that an interrupt is noticed in between.
Status advance_to(SpeedVariant& variant, std::int64_t depth, std::span<const TokenId> tokens,
                  const SpeedOptions& options, ProgressMeter& meter) {
  while (variant.depth() < depth) {
    if (options.cancel.cancelled()) return cancelled(variant.depth());
    const std::int64_t n =
        std::min<std::int64_t>(std::max(options.n_ubatch, 1), depth - variant.depth());
    VOLVELLE_RETURN_IF_ERROR(variant.advance(
        tokens.subspan(static_cast<std::size_t>(variant.depth()), static_cast<std::size_t>(n))));
    meter.add(n);
  }
  return {};
}

/// samples[variant][repetition]
using Samples = std::vector<std::vector<SpeedSample>>;

Result<Samples> measure_all(const Variants& variants, std::span<const TokenId> tokens_at_depth,
                            const SpeedOptions& options, ProgressMeter& meter) {
  const auto prefill = tokens_at_depth.first(static_cast<std::size_t>(options.n_prefill));
  const auto decode = tokens_at_depth.first(static_cast<std::size_t>(options.n_decode));
  // The first graph of a kind is built and its pages touched: not part of a steady state.
  for (const auto& variant : variants) {
    VOLVELLE_RETURN_IF_ERROR(measure(*variant, {}, decode.first(1)));
  }
  Samples samples(variants.size());
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const std::size_t v = (i + static_cast<std::size_t>(repetition)) % variants.size();
      if (options.cancel.cancelled()) return cancelled(variants[v]->depth());
      VOLVELLE_ASSIGN_OR_RETURN(const SpeedSample sample, measure(*variants[v], prefill, decode));
      samples[v].push_back(sample);
      meter.add(options.n_prefill + options.n_decode);
    }
  }
  return samples;
}

/// The faster of llama.cpp's paths in each repetition; empty where they were not measured.
std::vector<SpeedSample> fastest_engine(const Variants& variants, const Samples& samples) {
  std::vector<SpeedSample> fastest;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    if (!variants[v]->is_engine()) continue;
    if (fastest.empty()) fastest = samples[v];
    for (std::size_t r = 0; r < fastest.size(); ++r) {
      fastest[r].prefill = std::min(fastest[r].prefill, samples[v][r].prefill);
      fastest[r].decode = std::min(fastest[r].decode, samples[v][r].decode);
    }
  }
  return fastest;
}

template <class Value>
std::vector<double> collect(std::size_t n, const Value& value) {
  std::vector<double> values;
  for (std::size_t r = 0; r < n; ++r) values.push_back(value(r));
  return values;
}

/// llama.cpp's attention time over ours. What is not attention costs both the same, so llama.cpp's
/// attention is its time without our rest.
double attention_ratio(double engine, double ours, double our_attention) {
  return (engine - (ours - our_attention)) / our_attention;
}

/// Ratios of our samples to llama.cpp's. What was not measured (no prefill, no attention time)
/// stays 0.
void add_ratios(const std::vector<SpeedSample>& ours, const std::vector<SpeedSample>& engine,
                SpeedRow& row) {
  const std::size_t n = ours.size();
  if (row.prefill_tps > 0) {
    row.prefill_ratio =
        median(collect(n, [&](std::size_t r) { return engine[r].prefill / ours[r].prefill; }));
    if (row.prefill_attention_ms > 0) {
      row.prefill_attention_ratio = median(collect(n, [&](std::size_t r) {
        return attention_ratio(engine[r].prefill, ours[r].prefill, ours[r].prefill_attention);
      }));
    }
  }
  const auto decode = collect(n, [&](std::size_t r) { return engine[r].decode / ours[r].decode; });
  row.decode_ratio = median(decode);
  row.spread = relative_spread(decode);
  if (row.attention_ms > 0) {
    row.attention_ratio = median(collect(n, [&](std::size_t r) {
      return attention_ratio(engine[r].decode, ours[r].decode, ours[r].attention);
    }));
  }
}

SpeedRow make_row(const SpeedVariant& variant, const std::vector<SpeedSample>& samples,
                  const std::vector<SpeedSample>& engine, std::int64_t n_prefill) {
  const std::size_t n = samples.size();
  const auto decode = collect(n, [&](std::size_t r) { return samples[r].decode; });
  SpeedRow row;
  row.depth = variant.depth();
  row.spec = variant.name();
  row.decode_ms = 1e3 * median(decode);
  row.attention_ms = 1e3 * median(collect(n, [&](std::size_t r) { return samples[r].attention; }));
  row.spread = relative_spread(decode);
  if (n_prefill > 0) {
    row.prefill_tps = static_cast<double>(n_prefill) /
                      median(collect(n, [&](std::size_t r) { return samples[r].prefill; }));
    row.prefill_attention_ms =
        1e3 * median(collect(n, [&](std::size_t r) { return samples[r].prefill_attention; }));
  }
  if (!variant.is_engine() && !engine.empty()) add_ratios(samples, engine, row);
  return row;
}

}  // namespace

Result<std::vector<SpeedRow>> run_speed(const Model& model, std::span<const TokenId> tokens,
                                        const SpeedOptions& options, const ProgressSink& progress) {
  VOLVELLE_RETURN_IF_ERROR(
      check_options(options, static_cast<std::int64_t>(tokens.size()), model.info()));
  std::vector<std::int64_t> depths = options.depths;
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  VOLVELLE_ASSIGN_OR_RETURN(const Variants variants,
                            make_variants(model, options, depths.back() + longest_block(options)));

  const auto n_variants = static_cast<std::int64_t>(variants.size());
  const std::int64_t measured = static_cast<std::int64_t>(depths.size()) * options.repetitions *
                                (options.n_prefill + options.n_decode);
  ProgressMeter meter(progress, "speed", "tokens", n_variants * (depths.back() + measured));
  std::vector<SpeedRow> rows;
  for (const std::int64_t depth : depths) {
    for (const auto& variant : variants) {
      VOLVELLE_RETURN_IF_ERROR(advance_to(*variant, depth, tokens, options, meter));
    }
    VOLVELLE_ASSIGN_OR_RETURN(
        const Samples samples,
        measure_all(variants, tokens.subspan(static_cast<std::size_t>(depth)), options, meter));
    const std::vector<SpeedSample> engine = fastest_engine(variants, samples);
    for (std::size_t v = 0; v < variants.size(); ++v) {
      rows.push_back(make_row(*variants[v], samples[v], engine, options.n_prefill));
    }
  }
  return rows;
}

}  // namespace volvelle
