// Ranges and names of sampler options. Numbers out of range are errors, not clamped: a typo must
// not change the answer silently. The ranges are those in which the engine's formulas make sense;
// where the engine has none, they only keep numbers finite and sizes small.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "volvelle/runtime/sampler.hpp"

namespace volvelle {
namespace {

constexpr int kMostTokens = 1 << 24;           // that penalties look back at
constexpr std::size_t kMostBreakerBytes = 40;  // the engine cuts longer ones
constexpr std::uint32_t kRandomSeed = ~0u;     // means "choose one" to the engine
constexpr float kTiny = 1.0f / (1 << 20);      // for what must be above 0

constexpr std::array<std::pair<SamplerStep, const char*>, 10> kNames{{
    {SamplerStep::kPenalties, "penalties"},
    {SamplerStep::kDry, "dry"},
    {SamplerStep::kTopNSigma, "top_n_sigma"},
    {SamplerStep::kTopK, "top_k"},
    {SamplerStep::kTypical, "typ_p"},
    {SamplerStep::kTopP, "top_p"},
    {SamplerStep::kMinP, "min_p"},
    {SamplerStep::kXtc, "xtc"},
    {SamplerStep::kTemperature, "temperature"},
    {SamplerStep::kAdaptiveP, "adaptive_p"},
}};
constexpr std::array<std::pair<const char*, const char*>, 3> kShortNames{
    {{"nucleus", "topp"}, {"temp", "temperature"}, {"typ", "typp"}}};

Error invalid(const std::string& what) { return {ErrorCode::kInvalidArgument, "sampler: " + what}; }

std::string number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

struct Range {
  const char* name;
  double value;
  double low;
  double high;
};

Status check_ranges(const SamplerOptions& o) {
  const std::array<Range, 22> ranges{{
      {"temp", o.temperature, 0, 100},
      {"top-k", double(o.top_k), 0, std::numeric_limits<int>::max()},
      {"top-p", o.top_p, 0, 1},
      {"min-p", o.min_p, 0, 1},
      {"typical", o.typical_p, 0, 1},
      {"top-nsigma", o.top_n_sigma, -1, 1000},
      {"xtc-probability", o.xtc_probability, 0, 1},
      {"xtc-threshold", o.xtc_threshold, 0, 1},
      {"repeat-last-n", double(o.repeat_last_n), 0, kMostTokens},
      {"repeat-penalty", o.repeat_penalty, kTiny, 1000},
      {"frequency-penalty", o.frequency_penalty, -1000, 1000},
      {"presence-penalty", o.presence_penalty, -1000, 1000},
      {"dry-multiplier", o.dry_multiplier, 0, 1000},
      {"dry-base", o.dry_base, 1, 1000},
      {"dry-allowed-length", double(o.dry_allowed_length), 0, kMostTokens},
      {"dry-penalty-last-n", double(o.dry_penalty_last_n), 0, kMostTokens},
      {"dynatemp-range", o.dynatemp_range, 0, 100},
      {"dynatemp-exp", o.dynatemp_exponent, 0, 100},
      {"mirostat", double(o.mirostat), 0, 2},
      {"mirostat-lr", o.mirostat_lr, 0, 100},
      {"mirostat-ent", o.mirostat_entropy, 0, 100},
      {"adaptive-decay", o.adaptive_decay, 0, 0.99f},
  }};
  for (const Range& range : ranges) {
    if (range.value >= range.low && range.value <= range.high) continue;  // false for NaN
    return invalid(std::string(range.name) + " must be " + number(range.low) + " to " +
                   number(range.high) + ", got " + number(range.value));
  }
  // Switches among numbers: between "off" and the smallest sensible value there is nothing.
  if (o.top_n_sigma < 0 && o.top_n_sigma != -1)
    return invalid("top-nsigma must be -1 (off) or 0 and more, got " + number(o.top_n_sigma));
  if (!(o.adaptive_target == -1 || (o.adaptive_target >= 0 && o.adaptive_target <= 1)))
    return invalid("adaptive-target must be -1 (off) or 0 to 1, got " + number(o.adaptive_target));
  return {};
}

Status check_breakers(const std::vector<std::string>& breakers) {
  for (const std::string& breaker : breakers) {
    if (!breaker.empty() && breaker.size() <= kMostBreakerBytes) continue;
    return invalid("dry-sequence-breaker " + io::quoted(breaker) + " has " +
                   std::to_string(breaker.size()) + " bytes; it must have 1 to " +
                   std::to_string(kMostBreakerBytes));
  }
  return {};
}

/// Without case, dashes and underscores, so that "top-k", "top_k" and "topk" are one.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == '-' || c == '_') continue;
    text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  for (const auto& [short_name, long_name] : kShortNames) {
    if (text == short_name) return long_name;
  }
  return text;
}

Result<SamplerStep> parse_step(std::string_view name) {
  std::string known;
  for (const auto& [step, step_name] : kNames) {
    if (plain(name) == plain(step_name)) return step;
    known.append(known.empty() ? "" : ", ").append(step_name);
  }
  return invalid("no sampler is named " + io::quoted(name) + "; use some of " + known);
}

Status check_order(const std::vector<SamplerStep>& order) {
  for (auto step = order.begin(); step != order.end(); ++step) {
    if (std::find(order.begin(), step, *step) == step) continue;
    return invalid(std::string("'") + to_string(*step) + "' is named twice; once is enough");
  }
  return {};
}

}  // namespace

const char* to_string(SamplerStep step) noexcept {
  for (const auto& [known, name] : kNames) {
    if (known == step) return name;
  }
  return "";
}

std::vector<SamplerStep> default_sampler_order() {
  std::vector<SamplerStep> order;
  for (const auto& [step, name] : kNames) {
    if (step != SamplerStep::kAdaptiveP) order.push_back(step);
  }
  return order;
}

Result<std::vector<SamplerStep>> parse_sampler_order(std::string_view text) {
  std::vector<SamplerStep> order;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(';', begin), text.size());
    VOLVELLE_ASSIGN_OR_RETURN(const SamplerStep step, parse_step(text.substr(begin, end - begin)));
    order.push_back(step);
    begin = end + 1;
  }
  VOLVELLE_RETURN_IF_ERROR(check_order(order));
  return order;
}

Status check_sampler_options(const SamplerOptions& options) {
  VOLVELLE_RETURN_IF_ERROR(check_ranges(options));
  VOLVELLE_RETURN_IF_ERROR(check_breakers(options.dry_sequence_breakers));
  VOLVELLE_RETURN_IF_ERROR(check_order(options.order));
  if (options.seed == kRandomSeed) {
    return invalid("seed " + std::to_string(kRandomSeed) +
                   " means a random one to the engine; use 0 to " +
                   std::to_string(kRandomSeed - 1));
  }
  for (const LogitBias& bias : options.logit_bias) {
    const bool usable = std::abs(bias.bias) <= 1e6f || bias.bias == -HUGE_VALF;
    if (!usable) {
      return invalid("the bias of token " + std::to_string(bias.token) +
                     " must be -1000000 to 1000000, or -inf to forbid it, got " +
                     std::to_string(bias.bias));
    }
  }
  return {};
}

bool is_greedy(const SamplerOptions& options) noexcept {
  if (options.temperature > 0) return false;
  if (options.mirostat != 0) return true;  // it is told the temperature only
  const auto& order = options.order;
  const bool cooled =
      std::find(order.begin(), order.end(), SamplerStep::kTemperature) != order.end();
  return cooled && options.dynatemp_range == 0;
}

}  // namespace volvelle
